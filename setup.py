"""Builds gpumem_alloc/_C with CMake; CMakeLists.txt holds the only list of sources.

The bridge is another module, compiled on the user's machine against the installed torch: its
sources are put into the package, and where a CUDA torch can be imported now (build isolation off),
it is compiled now. The folder benchmarks/ becomes gpumem_alloc.benchmarks.
"""

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
LARGEST_BENCHMARK_FILE_BYTES = 300 << 10


def missing(name: str) -> str:
    """Return the error for a package that pip would have brought, had it been let."""
    return (
        f"gpumem_alloc: {name} was not found.\n"
        "It is needed to compile the extension, and build isolation is off.\n"
        f"Install it into this environment: python -m pip install {name}"
    )


def tool(name: str) -> str:
    """Return the path of a build tool: on PATH, else beside this interpreter."""
    path = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    if path is None:
        raise SystemExit(missing(name))
    return path


class CMakeExtension(Extension):
    """An extension whose sources only CMake knows."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sources=[])


class CMakeBuild(build_ext):
    """Configure, build, and leave the module where setuptools looks for it."""

    def run(self) -> None:
        # A build for the source tree keeps its folder, so that the next one is incremental.
        if self.inplace:
            self.build_temp = str(ROOT / "build" / f"python-{sys.implementation.cache_tag}")
        super().run()
        if not self.inplace:
            self.build_bridge()

    def build_bridge(self) -> None:
        """Compile the bridge into what will be installed; without it, enable() does so."""
        built = Path(self.build_lib).resolve()
        if (built / "gpumem_alloc" / "csrc").is_dir():  # not where only this command runs
            path = os.pathsep.join(filter(None, [str(built), os.environ.get("PYTHONPATH")]))
            command = [sys.executable, "-m", "gpumem_alloc.bridge.prebuild"]
            subprocess.run(command, check=False, cwd=built, env={**os.environ, "PYTHONPATH": path})

    def build_extension(self, ext: Extension) -> None:
        if not sys.platform.startswith("linux"):
            raise SystemExit(f"gpumem_alloc: built for Linux only; this is {sys.platform}.")
        try:
            import pybind11
        except ModuleNotFoundError:
            raise SystemExit(missing("pybind11")) from None
        module = ROOT / self.get_ext_fullpath(ext.name)
        build = Path(self.build_temp).resolve()
        configure = [
            f"-S{ROOT}",
            f"-B{build}",
            "-GNinja",
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            f"-DCMAKE_BUILD_TYPE={'Debug' if self.debug else 'Release'}",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={module.parent}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            "-DGMA_BUILD_PYTHON=ON",
            "-DGMA_BUILD_TESTS=OFF",
            *os.environ.get("CMAKE_ARGS", "").split(),
        ]
        for arguments in (configure, ["--build", str(build)]):
            if subprocess.run([tool("cmake"), *arguments], check=False).returncode != 0:
                raise SystemExit("gpumem_alloc: the extension was not built; CMake says why above.")


def benchmark_files() -> list[Path]:
    """Return what of benchmarks/ is installed: programs and small recordings, no results."""
    folder = ROOT / "benchmarks"
    return [
        path.relative_to(folder)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix != ".pyc"
        and path.relative_to(folder).parts[0] not in ("results", "out")
        and path.stat().st_size <= LARGEST_BENCHMARK_FILE_BYTES
    ]


class BuildWithSources(build_py):
    """Put the bridge's sources and the benchmarks into the package.

    A checkout in use has them beside it.
    """

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        listed = runpy.run_path(str(ROOT / "gpumem_alloc" / "bridge" / "sources.py"))
        self.put("csrc", listed["closure"](ROOT / "csrc"))
        self.put("benchmarks", benchmark_files())

    def put(self, folder: str, paths: Iterable[Path]) -> None:
        for path in paths:
            target = Path(self.build_lib) / "gpumem_alloc" / folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / folder / path, target)


setup(
    ext_modules=[CMakeExtension("gpumem_alloc._C")],
    cmdclass={"build_ext": CMakeBuild, "build_py": BuildWithSources},
)
