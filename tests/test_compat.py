"""`make compat`: wheels of torch that are nearly empty, a compiler that takes no time."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.bridge_bench import Bench, set_up
from tools import compat


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return set_up(tmp_path, monkeypatch)


def wheel(folder: Path, version: str, cuda: str | None) -> Path:
    files = {
        "torch/version.py": f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n",
        "torch/include/c10/core/Allocator.h": "",
        "torch/lib/libc10.so": "",
        "torch/lib/libtorch_cuda_linalg.so": "large, and not linked to",
        "torch/nn/functional.py": "",
    }
    if cuda:
        files["torch/include/c10/cuda/impl/cuda_cmake_macros.h"] = ""
    path = folder / f"torch-{version}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_cuda_wheel_is_compiled_and_linked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made = wheel(bench.folder, "2.12.1+cu130", "13.0")
    monkeypatch.setattr(compat, "fetch", lambda *_: made)
    row = compat.check("2.12", bench.folder)
    assert (row.torch, row.cuda, row.compiled, row.linked) == (
        "2.12.1+cu130", "13.0", "yes", "yes",
    )  # fmt: skip
    assert bench.calls() == ["one.cpp", "stamp.cpp", "two.cpp", "link"]


def test_a_wheel_without_cuda_is_compiled_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = wheel(bench.folder, "2.13.0+cpu", None)
    monkeypatch.setattr(compat, "fetch", lambda *_: made)
    row = compat.check("2.13", bench.folder)
    assert (row.cuda, row.compiled, row.linked) == ("none", "yes", "no libraries")
    assert "link" not in bench.calls()


def test_only_what_a_build_needs_is_unpacked(bench: Bench) -> None:
    compat.unpack(wheel(bench.folder, "2.12.1+cu130", "13.0"), bench.folder / "unpacked")
    found = {path.name for path in (bench.folder / "unpacked").rglob("*") if path.is_file()}
    assert found == {"version.py", "Allocator.h", "libc10.so", "cuda_cmake_macros.h"}


def test_failures_and_absences_are_told_apart(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = wheel(bench.folder, "2.12.1+cu130", "13.0")
    answers: dict[str, Path | str] = {"2.12": made, "2.15": "no matching distribution"}
    monkeypatch.setattr(compat, "fetch", lambda minor, _: answers[minor])
    monkeypatch.setattr(sys, "argv", ["compat", "--wheels", str(bench.folder), "2.12", "2.15"])
    assert compat.main() == 0
    table = capsys.readouterr().out
    assert "no wheel: no matching distribution" in table
    monkeypatch.setenv("FAKE_FAIL", "two.cpp")
    assert compat.main() == 1
    table = capsys.readouterr().out
    assert "FAILED" in table
    assert "no such luck" in table
    monkeypatch.setattr(sys, "argv", ["compat", "--wheels", str(bench.folder), "2.15"])
    assert compat.main() == 2
