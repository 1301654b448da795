"""A place to build bridges with a compiler that takes no time."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpumem_alloc
from gpumem_alloc.bridge import obtain
from gpumem_alloc.bridge.facts import TorchFacts

PACKAGE_FOLDER = Path(gpumem_alloc.__file__).resolve().parent.parent
FAKE = f"{sys.executable} -S -E {Path(__file__).with_name('fake_compiler.py')}"
UNITS = ["one.cpp", "stamp.cpp", "two.cpp", "link"]


@dataclass(frozen=True)
class Bench:
    """A torch, a CUDA, a package with sources and a cache, all of them nearly empty."""

    folder: Path
    facts: TorchFacts

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def calls(self) -> list[str]:
        """What was compiled since the last call, in alphabetical order but for the link."""
        notes = self.folder / "calls"
        lines = notes.read_text().split() if notes.exists() else []
        notes.write_text("")
        return sorted(line for line in lines if line != "link") + ["link"] * lines.count("link")

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Another process that wants the bridge."""
        code = (
            "from pathlib import Path, PosixPath\n"
            "from gpumem_alloc.bridge import obtain\n"
            "from gpumem_alloc.bridge.facts import TorchFacts\n"
            f"obtain.PACKAGE = Path({str(obtain.PACKAGE)!r})\n"
            f"print(obtain.obtain({self.facts!r}).module)\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code], text=True, cwd=PACKAGE_FOLDER,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip


def set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Make one, and point everything at it."""

    def write(path: str, text: str = "") -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("cuda/include/cuda.h", "#define CUDA_VERSION 13000\n")
    write("cuda/include/cuda_runtime_api.h")
    write("cuda/include/crt/host_defines.h")
    write("cuda/lib64/libcudart.so.13")
    write("package/csrc/torch/bridge/one.cpp", '#include "base/shared.h"\n')
    write("package/csrc/torch/bridge/two.cpp", "#include <vector>\n")
    write("package/csrc/base/shared.h", "#pragma once\n")
    write("package/csrc/base/unrelated.h")
    monkeypatch.setattr(obtain, "PACKAGE", tmp_path / "package")
    monkeypatch.delenv("GPUMEM_ALLOC_DOOR", raising=False)
    for name, value in {
        "CXX": FAKE,
        "CUDA_HOME": str(tmp_path / "cuda"),
        "FAKE_CALLS": str(tmp_path / "calls"),
        "GPUMEM_ALLOC_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    return Bench(tmp_path, TorchFacts("2.14.1+cu130", "13.0", tmp_path / "torch"))
