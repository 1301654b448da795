"""The package: one version, one module that links to nothing, and installs that need nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gpumem_alloc
from gpumem_alloc import _C
from gpumem_alloc.bridge import sources
from tools.bootstrap import extra_requirements

# glibc's own parts, the C++ runtime, the loader. Not libcuda, libcudart or anything of torch.
ALLOWED_LIBRARIES = re.compile(
    r"(libstdc\+\+|libgcc_s|libc|libm|libpthread|libdl|ld-linux[\w-]*)\.so"
)


def run(
    *command: str | Path, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """Run a command; what it printed is in the failure."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout


def test_version_is_the_one_in_pyproject(root: Path) -> None:
    match = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert match is not None
    assert gpumem_alloc.__version__ == match[1]


def test_version_is_written_nowhere_else(root: Path) -> None:
    written = re.compile(r"""(version__|VERSION)["']?\s*[=:]\s*["']\d""")
    sources = [root / "setup.py", root / "CMakeLists.txt", *(root / "cmake").glob("*.cmake")]
    sources += [*(root / "gpumem_alloc").rglob("*.py"), *(root / "csrc").rglob("*.[hc]*")]
    assert [path.name for path in sources if written.search(path.read_text())] == []


def test_module_is_linked_to_the_language_runtimes_only() -> None:
    dynamic = run("readelf", "--dynamic", "--wide", _C.__file__)
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic)
    # Exceptions pass from the module into torch, so the C++ runtime must be the shared one.
    assert "libstdc++.so.6" in needed
    assert [name for name in needed if not ALLOWED_LIBRARIES.match(name)] == []


def test_module_exports_its_doors_and_nothing_else() -> None:
    symbols = run("readelf", "--dyn-syms", "--wide", _C.__file__)
    defined = [line.split() for line in symbols.splitlines() if re.search(r" (FUNC|OBJECT) ", line)]
    ours = {f[7] for f in defined if f[6] != "UND" and f[4] == "GLOBAL" and f[5] == "DEFAULT"}
    assert {name for name in ours if not name.startswith("gma_")} == {"PyInit__C"}


def test_importing_loads_neither_torch_nor_a_driver() -> None:
    script = (
        "import sys, gpumem_alloc\n"
        "maps = open('/proc/self/maps').read()\n"
        "print([m for m in ('torch', 'matplotlib') if m in sys.modules],\n"
        "      [lib for lib in ('libcuda', 'libcudart', 'libtorch') if lib in maps])"
    )
    assert run(sys.executable, "-c", script).strip() == "[] []"


def test_package_is_typed() -> None:
    assert Path(gpumem_alloc.__file__).with_name("py.typed").exists()


@pytest.fixture(scope="module")
def sdist(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this checkout, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    script = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
    run(sys.executable, "-W", "ignore", "-c", script, folder, cwd=root)
    (archive,) = folder.glob("*.tar.gz")
    run("tar", "-xzf", archive, "-C", folder)
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


def test_sdist_holds_every_tracked_source(root: Path, sdist: Path) -> None:
    folders = ("csrc", "cmake", "gpumem_alloc", "tests", "tools")
    wanted = {
        path.relative_to(root)
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so"}
    }
    assert wanted - {path.relative_to(sdist) for path in sdist.rglob("*")} == set()


@pytest.mark.network
def test_sdist_installs_as_a_wheel_and_in_place(sdist: Path, tmp_path: Path) -> None:
    """Build isolation on, no repository, no torch, and cuda.h from the build requirement."""
    assert not (sdist / ".git").exists()
    # Both are compiled in the folder that an installation in place keeps, so mostly once; soon,
    # since what is optimised is compiled for the tests themselves.
    settings = tmp_path / "setup.cfg"
    folder = sdist / "build" / f"python-{sys.implementation.cache_tag}"
    settings.write_text(f"[build]\nbuild_temp = {folder}\n")
    build = {
        "DIST_EXTRA_CONFIG": str(settings),
        "GMA_CUDA_HEADER": "wheel",
        "CMAKE_ARGS": "-DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DGMA_PRECOMPILE=ON",
    }
    pip = [sys.executable, "-m", "pip", "--quiet"]
    run(*pip, "wheel", "--no-deps", "-w", tmp_path, sdist, environment=build)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info" not in name}
    assert {name.split("/")[0] for name in names} == {"gpumem_alloc"}
    assert len([name for name in names if name.endswith(".so")]) == 1
    assert "gpumem_alloc/py.typed" in names
    shipped = {f"gpumem_alloc/csrc/{path}" for path in sources.closure(sdist / "csrc")}
    assert {name for name in names if name.startswith("gpumem_alloc/csrc/")} == shipped
    assert len([name for name in shipped if name.endswith(".cpp")]) > 3

    run(sys.executable, "-m", "venv", tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    run(python, "-m", "pip", "--quiet", "install", wheel)
    script = "import gpumem_alloc as g; print(g.__version__)"
    assert run(python, "-c", script, cwd=tmp_path).strip() == gpumem_alloc.__version__
    missing = "import importlib.util as u; print(u.find_spec('torch'))"
    assert run(python, "-c", missing, cwd=tmp_path).strip() == "None"

    run(python, "-m", "pip", "--quiet", "install", "--no-deps", "-e", sdist, environment=build)
    (tmp_path / "gpumem_alloc").mkdir()  # as where a checkout's parent is the current folder
    script = "from gpumem_alloc import _C; print(_C.__file__)"
    assert Path(run(python, "-c", script, cwd=tmp_path).strip()).parent == sdist / "gpumem_alloc"


def test_the_bridges_sources_go_into_the_package_and_nothing_else_of_csrc(
    root: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_py"]
    run(*command, "-d", tmp_path / "lib", cwd=root)
    shipped = tmp_path / "lib" / "gpumem_alloc" / "csrc"
    found = {path.relative_to(shipped) for path in shipped.rglob("*") if path.is_file()}
    assert found == set(sources.closure(root / "csrc"))
    for expected in ("core/allocator.h", "driver/driver.h", "torch/bridge/module.cpp"):
        assert Path(expected) in found
    assert not [path for path in found if path.parts[0] != "torch" and path.suffix == ".cpp"]


def test_the_extra_brings_the_headers_of_torchs_own_cuda(root: Path) -> None:
    line = extra_requirements(["bridge"])
    assert line == ["cuda-toolkit[crt]; platform_system == 'Linux'"]


def test_missing_cuda_header_fails_with_one_clear_line(root: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["cmake", "-GNinja", f"-S{root}", f"-B{tmp_path}", f"-DPython_EXECUTABLE={tmp_path}/none"],
        env={**os.environ, "GMA_CUDA_HEADER": "wheel"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "cuda.h was not found: set CUDA_HOME" in done.stderr


def test_a_build_without_isolation_names_the_package_it_lacks(root: Path, tmp_path: Path) -> None:
    script = (
        "import runpy, sys; sys.modules['pybind11'] = None; "
        f"sys.argv = ['setup.py', '-q', 'build_ext', '--build-lib', {str(tmp_path)!r}]; "
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=root
    )
    assert done.returncode == 1
    happened, why, do = done.stderr.strip().splitlines()[-3:]
    assert "pybind11 was not found" in happened
    assert "build isolation is off" in why
    assert "pip install pybind11" in do
