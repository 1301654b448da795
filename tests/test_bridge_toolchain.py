"""What the bridge is compiled with: found in order, refused with the command that helps."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from gpumem_alloc.bridge import cuda_places, facts, toolchain
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.facts import TorchFacts

FAKE = f"{sys.executable} -S -E {Path(__file__).with_name('fake_compiler.py')}"


def problem(call: object, *arguments: object) -> BridgeError:
    """The error of a call, which must have its three lines."""
    assert callable(call)
    with pytest.raises(BridgeError) as caught:
        call(*arguments)
    assert len(str(caught.value).splitlines()) == 3
    assert "\n" not in caught.value.line
    return caught.value


# --- torch ----------------------------------------------------------------------------------------


def torch_of(folder: Path, version: str, cuda: str | None) -> TorchFacts:
    folder.mkdir(exist_ok=True)
    (folder / "version.py").write_text(
        f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"
    )
    return facts.of_folder(folder)


def test_a_torch_in_a_folder_is_read_without_importing_it(tmp_path: Path) -> None:
    found = torch_of(tmp_path, "2.14.1+cu130", "13.0")
    assert (found.version, found.release, found.cuda) == ("2.14.1+cu130", "2.14.1", "13.0")
    assert (found.minor, found.cuda_major) == ((2, 14), 13)
    assert torch_of(tmp_path, "2.13.0+cpu", None).cuda is None


@pytest.mark.parametrize("version", ["2.10.0+cu128", "1.13.1", "2.9.0a0+git12"])
def test_an_old_torch_is_refused(version: str) -> None:
    error = problem(facts.require_supported, TorchFacts(version, "12.8", Path("/torch")))
    assert version in error.what
    assert '"torch>=2.11"' in error.fix


def test_newer_ones_are_not() -> None:
    for version in ("2.11.0+cu130", "2.15.0", "3.0.0.dev1"):
        facts.require_supported(TorchFacts(version, "13.0", Path("/torch")))


def test_a_torch_without_cuda_is_refused() -> None:
    error = problem(facts.require_supported, TorchFacts("2.14.1+cpu", None, Path("/torch")))
    assert "without CUDA" in error.what


# --- the compiler ---------------------------------------------------------------------------------


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    return folder


def test_no_compiler_says_how_to_get_one(no_compiler: Path) -> None:
    error = problem(toolchain.find_compiler)
    assert "no C++ compiler" in error.what
    assert "apt-get install g++" in error.fix


def test_the_first_of_the_usual_names_is_taken(no_compiler: Path) -> None:
    for name in ("clang++", "g++"):
        program(no_compiler / name, f'exec {FAKE} "$@"')
        assert toolchain.find_compiler().command == (name,)


def test_cxx_is_honoured_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{FAKE} -march=native")
    monkeypatch.setenv("FAKE_MACROS", "#define __clang__ 1\n#define __clang_major__ 18\n"
                       "#define __clang_minor__ 1\n#define __GNUC__ 4")  # fmt: skip
    found = toolchain.find_compiler()
    assert found.command[-1] == "-march=native"
    assert (found.kind, found.version) == ("clang++", "18.1")


@pytest.mark.parametrize(
    ("macros", "said"),
    [
        ("#define __GNUC__ 10\n#define __GNUC_MINOR__ 2", "is g++ 10.2"),
        ("#define __clang__ 1\n#define __clang_major__ 13", "is clang++ 13.0"),
        ("usage: what?", "does not answer as one"),
    ],
)
def test_an_old_compiler_is_refused(
    monkeypatch: pytest.MonkeyPatch, macros: str, said: str
) -> None:
    monkeypatch.setenv("CXX", FAKE)
    monkeypatch.setenv("FAKE_MACROS", macros)
    error = problem(toolchain.find_compiler)
    assert said in error.what
    assert "in CXX" in error.what


def test_a_cxx_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    error = problem(toolchain.find_compiler)
    assert "/nowhere/g++" in error.what
    assert "No such file" in error.why


def test_the_compiler_runs_without_what_this_process_preloads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/librig.so")
    monkeypatch.setenv("LC_ALL", "de_DE")
    environment = toolchain.environment()
    assert "LD_PRELOAD" not in environment
    assert environment["LC_ALL"] == "C"
    assert environment["PATH"] == os.environ["PATH"]


def test_missing_python_headers_name_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = {"include": str(tmp_path), "platinclude": str(tmp_path)}
    monkeypatch.setattr("sysconfig.get_paths", lambda: paths)
    error = problem(toolchain.find_python)
    assert str(tmp_path) in error.what
    assert f"apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-dev" in error.fix
    (tmp_path / "Python.h").write_text("")
    assert toolchain.find_python() == (tmp_path,)


# --- CUDA -----------------------------------------------------------------------------------------


class Machine:
    """Places for CUDA, each empty until something is put there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.torch = TorchFacts("2.14.1+cu130", "13.0", folder / "site/torch")
        self.old_torch = TorchFacts("2.11.0+cu128", "12.8", folder / "site/torch")

    def write(self, *paths: str, version: int = 13000) -> None:
        for path in paths:
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"#define CUDA_VERSION {version}\n" if file.name == "cuda.h" else "")

    def toolkit(self, place: str, version: int = 13000) -> None:
        """A whole toolkit."""
        names = ("include/cuda.h", "include/cuda_runtime_api.h", "include/crt/host_defines.h",
                 f"lib64/libcudart.so.{version // 1000}")  # fmt: skip
        self.write(*(f"{place}/{name}" for name in names), version=version)

    def wheels(self) -> None:
        """As torch's own dependencies bring them: without crt."""
        root = "site/nvidia/cu13"
        self.write(f"{root}/include/cuda.h", f"{root}/include/cuda_runtime_api.h",
                   f"{root}/lib/libcudart.so.13")  # fmt: skip


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cuda_places, "_usual_roots", lambda _: [tmp_path / "usual"])
    monkeypatch.setattr(cuda_places, "_nvidia_folders", lambda _: [tmp_path / "site/nvidia"])
    return Machine(tmp_path)


def test_nothing_at_all_asks_for_both_wheels(places: Machine) -> None:
    error = problem(cuda_places.find, places.torch)
    assert '"nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*"' in error.fix
    assert f"{sys.executable} -m pip install " in error.fix


def test_torchs_wheels_alone_lack_crt(places: Machine) -> None:
    places.wheels()
    error = problem(cuda_places.find, places.torch)
    assert "torch's nvidia wheels: no crt/host_defines.h" in error.why
    assert 'pip install "nvidia-cuda-crt==13.0.*" ' in error.fix


def test_cuda_12_has_wheels_of_other_names(places: Machine) -> None:
    root = "site/nvidia/cuda_runtime/include"
    places.write(f"{root}/cuda.h", f"{root}/cuda_runtime_api.h", version=12080)
    places.wheels()  # those of 13, installed beside them, are not for this torch
    error = problem(cuda_places.find, places.old_torch)
    assert 'pip install "nvidia-cuda-nvcc-cu12==12.8.*" ' in error.fix
    places.write("site/nvidia/cuda_nvcc/include/crt/host_defines.h",
                 "site/nvidia/cuda_runtime/lib/libcudart.so.12")  # fmt: skip
    found = cuda_places.find(places.old_torch)
    assert found.version == "12.8"
    assert [path.parent.name for path in found.includes] == ["cuda_runtime", "cuda_nvcc"]
    assert found.runtime.name == "libcudart.so.12"


def test_the_crt_wheel_completes_torchs_own(places: Machine) -> None:
    places.wheels()
    places.write("site/nvidia/cu13/include/crt/host_defines.h")
    found = cuda_places.find(places.torch)
    assert found.includes == (places.folder / "site/nvidia/cu13/include",)
    assert found.runtime == places.folder / "site/nvidia/cu13/lib/libcudart.so.13"


def test_places_are_asked_in_order(places: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    places.toolkit("usual")
    assert cuda_places.find(places.torch).place == str(places.folder / "usual")
    places.wheels()
    found = cuda_places.find(places.torch)  # no crt there
    assert found.place == str(places.folder / "usual")
    assert found.runtime.parent.parent.name == "cu13", "torch's own library is the one in use"
    places.write("site/nvidia/cu13/include/crt/host_defines.h")
    assert cuda_places.find(places.torch).place == "torch's nvidia wheels"
    for name in ("CUDA_PATH", "CUDA_HOME"):
        places.toolkit(name)
        monkeypatch.setenv(name, str(places.folder / name))
        found = cuda_places.find(places.torch)
        assert found.place.startswith(f"{name} (")
        assert found.runtime.parent.parent.name == "cu13"


def test_another_major_version_is_refused_and_named(
    places: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    places.toolkit("old", version=12060)
    monkeypatch.setenv("CUDA_HOME", str(places.folder / "old"))
    error = problem(cuda_places.find, places.torch)
    assert f"CUDA_HOME ({places.folder / 'old'}) is CUDA 12.6" in error.why
    assert "CUDA 13" in error.what
    places.toolkit("usual", version=13020)  # another minor version will do
    assert cuda_places.find(places.torch).version == "13.2"


def test_headers_that_state_no_version_are_refused(places: Machine) -> None:
    places.toolkit("usual")
    (places.folder / "usual/include/cuda.h").write_text("// nothing\n")
    assert "states no CUDA_VERSION" in problem(cuda_places.find, places.torch).why


def test_a_missing_runtime_library_is_named(places: Machine) -> None:
    places.toolkit("usual")
    (places.folder / "usual/lib64/libcudart.so.13").unlink()
    assert "libcudart.so.13" in problem(cuda_places.find, places.torch).what


def test_a_toolkit_of_conda_or_a_cross_compiler_has_targets(places: Machine) -> None:
    root = "usual/targets/x86_64-linux"
    places.write(f"{root}/include/cuda.h", f"{root}/include/cuda_runtime_api.h",
                 f"{root}/include/crt/host_defines.h", f"{root}/lib/libcudart.so.13")  # fmt: skip
    assert cuda_places.find(places.torch).includes == (places.folder / root / "include",)
