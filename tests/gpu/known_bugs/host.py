"""Kernels on the stand-in card: the same sources compiled for the CPU and run at the launch.

The stand-in's memory is this process's own, mapped where the card's would be, so what leaves a
mapping faults here too, as SIGSEGV. A kernel runs thread after thread, and at once, whatever its
stream still has to do.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

from tests.gpu.known_bugs.kernels import Size, pointers, signatures

_HEAD = """
struct Place { unsigned x, y; };
static Place blockIdx, threadIdx, blockDim;
struct float4 { float x, y, z, w; };
#define __global__
static int atomicAdd(int* at, int value) { const int old = *at; *at += value; return old; }
"""

_LAUNCHER = """
extern "C" void launch_{name}(unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned block_y,
                              void** values) {{
    blockDim = {{block_x, block_y}};
    for (blockIdx.y = 0; blockIdx.y < grid_y; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < grid_x; ++blockIdx.x)
    for (threadIdx.y = 0; threadIdx.y < block_y; ++threadIdx.y)
    for (threadIdx.x = 0; threadIdx.x < block_x; ++threadIdx.x) {{
        {name}({arguments});
    }}
}}
"""


def translated(source: str) -> str:
    """The source in plain C++, with a function for each kernel that launches it."""
    launchers = []
    for name, types in signatures(source).items():
        each = (f"*static_cast<{kind}*>(values[{index}])" for index, kind in enumerate(types))
        launchers.append(_LAUNCHER.format(name=name, arguments=", ".join(each)))
    return _HEAD + source + "".join(launchers)


def compile_library(source: str, wrong: bool, library: Path) -> None:
    """Compile kernels for the CPU. Raises subprocess.CalledProcessError."""
    flags = ["-std=c++20", "-O0", "-fPIC", "-shared", f"-DWRONG={int(wrong)}"]
    subprocess.run(
        ["g++", *flags, "-x", "c++", "-", "-o", str(library)],
        input=translated(source), text=True, check=True,
    )  # fmt: skip


class HostModule:
    """A library of compile_library()."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def launch(self, name: str, blocks: Size, threads: Size, values: list[Any]) -> None:
        """See kernels.Module."""
        getattr(self._library, f"launch_{name}")(*blocks, *threads, pointers(values))
