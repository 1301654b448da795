"""The CUDA driver's functions that an attack needs and torch does not offer, through ctypes."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from gpumem_alloc.verify.outcome import NotRunError

POSIX_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
DMA_BUF_DESCRIPTOR = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_IPC_HANDLE_BYTES = 64
_LARGEST_HANDLE_BYTES = 1 << 30
_DEVICE_LOCATION, _READ_WRITE = 1, 3


class CudaError(Exception):
    """A call failed; the text is the driver's."""


class _AccessDescription(ctypes.Structure):
    _fields_ = (
        ("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int)
    )  # fmt: skip


class Driver:
    """libcuda, with torch's context current on this thread."""

    def __init__(self, torch: Any) -> None:
        torch.cuda.synchronize()  # makes the context current
        self._library = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; NotRunError if the driver lacks it, CudaError if it fails."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NotRunError(f"the driver has no {name}") from None
        check(self._library, name, function(*arguments))

    def handle_at(self, address: int) -> ctypes.c_uint64:
        """Return the handle of the memory that is mapped at an address."""
        handle = ctypes.c_uint64()
        self.call("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(address))
        return handle

    def map_again(self, handle: ctypes.c_uint64, page_bytes: int) -> tuple[int, int]:
        """Map a handle at addresses of its own; return where, and its size."""
        address = ctypes.c_uint64()
        self.call(
            "cuMemAddressReserve", ctypes.byref(address),
            *map(ctypes.c_size_t, (_LARGEST_HANDLE_BYTES, page_bytes)),
            ctypes.c_uint64(), ctypes.c_uint64(),
        )  # fmt: skip
        size_bytes = self._map_whole(address, handle, page_bytes)
        access = _AccessDescription(_DEVICE_LOCATION, 0, _READ_WRITE)
        self.call(
            "cuMemSetAccess", address, ctypes.c_size_t(size_bytes), ctypes.byref(access),
            ctypes.c_size_t(1),
        )  # fmt: skip
        return address.value, size_bytes

    def _map_whole(self, address: ctypes.c_uint64, handle: ctypes.c_uint64, page_bytes: int) -> int:
        """Nobody tells how large a handle is, but only its own size can be mapped."""
        for size_bytes in range(page_bytes, _LARGEST_HANDLE_BYTES + 1, page_bytes):
            try:
                self.call(
                    "cuMemMap", address, ctypes.c_size_t(size_bytes), ctypes.c_size_t(), handle,
                    ctypes.c_uint64(),
                )  # fmt: skip
            except CudaError:
                continue
            return size_bytes
        raise CudaError("the handle cannot be mapped a second time")

    def export_descriptor(self, address: int) -> None:
        """Make a file descriptor of the memory at an address, and close it."""
        descriptor = ctypes.c_int(-1)
        self.call(
            "cuMemExportToShareableHandle", ctypes.byref(descriptor), self.handle_at(address),
            ctypes.c_int(POSIX_DESCRIPTOR), ctypes.c_uint64(),
        )  # fmt: skip
        os.close(descriptor.value)

    def export_dma_buf(self, address: int, size_bytes: int) -> None:
        """Make a dma-buf of a range, and close it."""
        descriptor = ctypes.c_int(-1)
        self.call(
            "cuMemGetHandleForAddressRange", ctypes.byref(descriptor), ctypes.c_uint64(address),
            ctypes.c_size_t(size_bytes), ctypes.c_int(DMA_BUF_DESCRIPTOR), ctypes.c_uint64(),
        )  # fmt: skip
        os.close(descriptor.value)


def export_ipc(address: int) -> None:
    """Make a CUDA IPC handle with the runtime that torch has loaded."""
    for path in _loaded_runtimes():
        library = ctypes.CDLL(path)
        if hasattr(library, "cudaIpcGetMemHandle"):
            handle = ctypes.create_string_buffer(_IPC_HANDLE_BYTES)
            result = library.cudaIpcGetMemHandle(handle, ctypes.c_void_p(address))
            library.cudaGetErrorString.restype = ctypes.c_char_p
            if result != 0:
                text = (library.cudaGetErrorString(result) or b"unknown").decode()
                raise CudaError(f"cudaIpcGetMemHandle: {text}")
            return
    raise NotRunError("torch has loaded no CUDA runtime with cudaIpcGetMemHandle")


def _loaded_runtimes() -> list[str | None]:
    """Where the runtime may be: in the program itself, or a library that torch brought."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in maps if "libcudart" in line}
    return [None, *sorted(paths)]


def check(library: ctypes.CDLL, name: str, result: int) -> None:
    """Raise CudaError with the driver's text for a result that is not success."""
    if result == 0:
        return
    text = ctypes.c_char_p()
    library.cuGetErrorString(result, ctypes.byref(text))
    raise CudaError(f"{name}: {(text.value or b'unknown').decode()} ({result})")
