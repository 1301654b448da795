"""Kernels on a card: compiled by NVRTC when they are needed, loaded and launched by the driver.

torch.cuda._compile_kernel does the same, but passes integers as 32 bits, and a stale pointer has
64; and it compiles in each process, where one folder of cubins serves all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.gpu.known_bugs.kernels import Size, pointers


class CudaError(RuntimeError):
    """A call of NVRTC or of the driver failed; the text is theirs."""


def _nvrtc() -> ctypes.CDLL:
    """Load the compiler that torch brings, else the toolkit's."""
    wheels = [Path(folder) / "nvidia" for folder in sys.path]
    # It opens its builtins by their bare name, so they must be there before.
    for pattern in ("*/lib/libnvrtc-builtins.so.*", "*/lib/libnvrtc.so.*"):
        for library in sorted(path for folder in wheels for path in folder.glob(pattern)):
            with contextlib.suppress(OSError):
                found = ctypes.CDLL(str(library))
                if "builtins" not in library.name:
                    return found
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise CudaError("there is no NVRTC library, neither of torch's wheels nor of a toolkit")


def compile_source(source: str, wrong: bool, architecture: str) -> bytes:
    """Compile kernels for `architecture` ("sm_90") to a cubin; CudaError has the compiler's log."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    flags = [f"--gpu-architecture={architecture}", f"-DWRONG={int(wrong)}", "--std=c++17"]
    options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    name = b"known_bugs.cu"
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name, 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, len(flags), options) != 0:
            log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise CudaError(log.rstrip(b"\0").decode())
        return _text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(program: ctypes.c_void_p, size: Callable[..., int], get: Callable[..., int]) -> bytes:
    length = ctypes.c_size_t()
    size(program, ctypes.byref(length))
    text = ctypes.create_string_buffer(length.value)
    get(program, text)
    return text.raw


class CardModule:
    """A cubin loaded into the current device's context."""

    def __init__(self, torch: Any, cubin: bytes, names: Iterable[str]) -> None:
        self._torch = torch
        torch.cuda.synchronize()  # the context is current from here on
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(self._module), cubin))
        # All now: a kernel that is loaded while a case holds up a stream may wait for the device.
        self._functions = {name: self._function(name) for name in names}

    def launch(self, name: str, blocks: Size, threads: Size, values: list[Any]) -> None:
        """See kernels.Module; CudaError if the context has faulted before."""
        stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
        self._check(
            self._driver.cuLaunchKernel(
                self._functions[name], *blocks, 1, *threads, 1, 0, stream, pointers(values), None
            )
        )

    def _function(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self._check(
            self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode())
        )
        if hasattr(self._driver, "cuFuncLoad"):  # before CUDA 12.4 the first launch loads it
            self._check(self._driver.cuFuncLoad(function))
        return function

    def _check(self, result: int) -> None:
        if result != 0:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(result, ctypes.byref(text))
            raise CudaError(f"CUDA error {result}: {(text.value or b'unknown').decode()}")
