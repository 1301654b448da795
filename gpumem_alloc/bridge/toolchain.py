"""Finds what the bridge is compiled with: a C++ compiler and the headers of CUDA and Python.

Each finder raises BridgeError with the command that brings what is missing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from gpumem_alloc.bridge import cuda_places
from gpumem_alloc.bridge.cuda_places import Cuda
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.facts import TorchFacts

_COMPILERS = ("g++", "clang++", "c++")
_OLDEST = {"g++": 11, "clang++": 14}  # the first that know C++20 well enough for torch's headers
_INSTALL_COMPILER = (
    'Install one: "apt-get install g++", "dnf install gcc-c++" or "conda install gxx"; '
    "or set CXX to one."
)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: how it is called, and what it says it is."""

    command: tuple[str, ...]
    kind: str  # g++ or clang++
    version: str

    def __str__(self) -> str:
        return f"{shlex.join(self.command)} ({self.kind} {self.version})"


@dataclass(frozen=True)
class Toolchain:
    """All that a build needs beside torch."""

    compiler: Compiler
    cuda: Cuda
    python_includes: tuple[Path, ...]

    @property
    def identity(self) -> str:
        """Another text when a build that failed may go better now."""
        folders = (*self.cuda.includes, *self.python_includes, self.cuda.runtime)
        return " ".join(map(str, (self.compiler, *folders)))


def find(facts: TorchFacts) -> Toolchain:
    """Find everything, or raise BridgeError about the first that is missing."""
    return Toolchain(find_compiler(), cuda_places.find(facts), find_python())


def find_compiler() -> Compiler:
    """CXX, with its arguments, else the first of g++, clang++ and c++ on PATH."""
    wanted = shlex.split(os.environ.get("CXX", ""))
    if wanted:
        return _checked(wanted, " in CXX")
    for name in _COMPILERS:
        if shutil.which(name):
            return _checked([name], "")
    raise BridgeError(
        "no C++ compiler was found.",
        f"The bridge is compiled on this machine, and PATH has none of {', '.join(_COMPILERS)}.",
        _INSTALL_COMPILER,
    )


def _checked(command: list[str], where: str) -> Compiler:
    try:
        done = subprocess.run(
            [*command, "-dM", "-E", "-x", "c++", os.devnull],
            capture_output=True, text=True, check=False, env=environment(),
        )  # fmt: skip
    except OSError as error:
        raise BridgeError(
            f"the C++ compiler{where} cannot be run: {shlex.join(command)}.",
            f"{error.strerror or error}.",
            _INSTALL_COMPILER,
        ) from None
    macros = dict(re.findall(r"^#define (\w+) (.*)$", done.stdout, re.MULTILINE))
    kind, prefix = ("clang++", "__clang") if "__clang__" in macros else ("g++", "__GNUC")
    minor = "_minor__" if kind == "clang++" else "_MINOR__"
    major = macros.get(f"{prefix}_major__" if kind == "clang++" else f"{prefix}__", "0")
    version = f"{major}.{macros.get(prefix + minor, '0')}"
    if int(major) < _OLDEST[kind]:
        raise BridgeError(
            f"the C++ compiler{where} is too old: {shlex.join(command)} is {kind} {version}."
            if macros
            else f"the C++ compiler{where} does not answer as one: {shlex.join(command)}.",
            f"torch's headers need C++20, of g++ {_OLDEST['g++']} or clang++ {_OLDEST['clang++']}.",
            _INSTALL_COMPILER,
        )
    return Compiler(tuple(command), kind, version)


def environment() -> dict[str, str]:
    """What compilers run with: messages in English, and nothing of this process's preloads."""
    kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return {**kept, "LC_ALL": "C"}


def find_python() -> tuple[Path, ...]:
    """The folders with Python's headers."""
    paths = sysconfig.get_paths()
    folders = tuple(dict.fromkeys(Path(paths[name]) for name in ("include", "platinclude")))
    if any((folder / "Python.h").is_file() for folder in folders):
        return folders
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise BridgeError(
        f"Python.h was not found in {folders[0]}.",
        "The bridge is a Python module and is compiled on this machine.",
        f'Install the headers of Python {version}: "apt-get install python{version}-dev" or '
        f'"dnf install python{version}-devel".',
    )
