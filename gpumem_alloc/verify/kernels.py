"""Kernels that touch any address: those built into the module, else compiled here by NVRTC."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.verify.cuda import CudaError, Driver
from gpumem_alloc.verify.machines import Access
from gpumem_alloc.verify.outcome import NotRunError

LATE_NS = 200_000_000
FAULTS = (700, 719)  # CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED
_SOURCE = r"""
__device__ void spin(unsigned long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); } while (now - start < ns);
}
extern "C" __global__ void poke(volatile unsigned char* at, unsigned long long bytes,
                                unsigned value, unsigned long long spin_ns) {
    spin(spin_ns);
    for (unsigned long long i = threadIdx.x; i < bytes; i += blockDim.x) { at[i] = value; }
}
extern "C" __global__ void peek(volatile unsigned char* at, unsigned long long bytes,
                                unsigned char* to) {
    for (unsigned long long i = threadIdx.x; i < bytes; i += blockDim.x) { to[i] = at[i]; }
}
"""
_THREADS = 128


class BuiltInKernels:
    """Those of csrc/kernels/attack.cu."""

    def poke(
        self, device: int, stream: int, address: int, bytes: int, value: int, spin_ns: int
    ) -> Access:
        """Launch a kernel that sets bytes after a while."""
        return _C.attack("poke", device, stream, address, bytes=bytes, value=value, spin_ns=spin_ns)

    def peek(self, device: int, stream: int, address: int, bytes: int) -> Access:
        """Launch a kernel that reads bytes."""
        return _C.attack("peek", device, stream, address, bytes=bytes)


class CompiledKernels:
    """The same, compiled for the current card. On device 0 only."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._driver = Driver(torch)
        major, minor = torch.cuda.get_device_capability()
        module = ctypes.c_void_p()
        cubin = _compiled(f"sm_{major}{minor}")
        self._driver.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self._functions = {name: self._function(module, name) for name in (b"poke", b"peek")}

    def poke(
        self, device: int, stream: int, address: int, bytes: int, value: int, spin_ns: int
    ) -> Access:
        """See BuiltInKernels."""
        sizes = ctypes.c_uint64(bytes), ctypes.c_uint(value), ctypes.c_uint64(spin_ns)
        return self._launch(b"poke", stream, [ctypes.c_uint64(address), *sizes], None)

    def peek(self, device: int, stream: int, address: int, bytes: int) -> Access:
        """See BuiltInKernels."""
        output = self._torch.empty(bytes, dtype=self._torch.uint8, pin_memory=True)
        sizes = ctypes.c_uint64(bytes), ctypes.c_uint64(output.data_ptr())
        return self._launch(b"peek", stream, [ctypes.c_uint64(address), *sizes], output)

    def _function(self, module: ctypes.c_void_p, name: bytes) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self._driver.call("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function

    def _launch(self, name: bytes, stream: int, values: list[Any], output: Any) -> Access:
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        one, zero = ctypes.c_uint(1), ctypes.c_uint(0)
        sizes = one, one, one, ctypes.c_uint(_THREADS), one, one, zero
        where = ctypes.c_void_p(stream)
        self._driver.call("cuLaunchKernel", self._functions[name], *sizes, where, pointers, None)
        return _Launched(self._driver, where, output)


class _Launched:
    def __init__(self, driver: Driver, stream: ctypes.c_void_p, output: Any) -> None:
        self._driver, self._stream, self._output = driver, stream, output

    def wait(self) -> str:
        try:
            self._driver.call("cuStreamSynchronize", self._stream)
        except CudaError as error:
            if str(error).endswith(tuple(f"({code})" for code in FAULTS)):
                return "fault"
            raise
        return "done"

    @property
    def data(self) -> bytes:
        return bytes(self._output.tolist())


def kernels(torch: Any) -> BuiltInKernels | CompiledKernels:
    """Return what there is; NotRunError if there is nothing."""
    return BuiltInKernels() if _C.has_cuda_kernels() else CompiledKernels(torch)


def _nvrtc() -> ctypes.CDLL:
    """Load the compiler that torch brings, else a toolkit's."""
    wheels = [Path(folder) / "nvidia" for folder in sys.path]
    # It opens its builtins by their bare name, so they go first.
    for pattern in ("*/lib/libnvrtc-builtins.so.*", "*/lib/libnvrtc.so.*"):
        for path in sorted(path for folder in wheels for path in folder.glob(pattern)):
            with contextlib.suppress(OSError):
                library = ctypes.CDLL(str(path))
                if "builtins" not in path.name:
                    return library
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    raise NotRunError("no kernels are built in, and there is no NVRTC to compile them")


def _compiled(architecture: str) -> bytes:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    option = (ctypes.c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), _SOURCE.encode(), b"attacks.cu", 0, None, None)
    try:
        if nvrtc.nvrtcCompileProgram(program, 1, option) != 0:
            raise NotRunError(f"NVRTC does not compile the kernels for {architecture}")
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
