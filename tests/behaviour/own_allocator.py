"""A tiny allocator of a program's own, as PyTorch's documentation shows one, for MemPool."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.behaviour.tools import torch

# The runtime is found in the process, so that neither its headers nor its name at link time matter.
_SOURCE = r"""
#include <dlfcn.h>
#include <stddef.h>

typedef int (*malloc_fn)(void**, size_t);
typedef int (*free_fn)(void*);

long allocated_count = 0, freed_count = 0, held_bytes = 0, refuse = 0;
static size_t sizes[4096];
static void* places[4096];

static void* runtime(const char* name) {
    void* found = dlsym(RTLD_DEFAULT, name);
    const char* files[] = {"libcudart.so.13", "libcudart.so.12"};
    for (int i = 0; found == NULL && i < 2; ++i) {
        void* library = dlopen(files[i], RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL) { found = dlsym(library, name); }
    }
    return found;
}

void* own_malloc(size_t size, int device, void* stream) {
    void* place = NULL;
    (void)device, (void)stream;
    if (refuse || ((malloc_fn)runtime("cudaMalloc"))(&place, size) != 0) { return NULL; }
    for (int i = 0; i < 4096; ++i) {
        if (places[i] == NULL) { places[i] = place; sizes[i] = size; break; }
    }
    ++allocated_count;
    held_bytes += (long)size;
    return place;
}

void own_free(void* place, size_t size, int device, void* stream) {
    (void)size, (void)device, (void)stream;
    for (int i = 0; i < 4096; ++i) {
        if (places[i] == place) { held_bytes -= (long)sizes[i]; places[i] = NULL; break; }
    }
    ++freed_count;
    ((free_fn)runtime("cudaFree"))(place);
}
"""


@cache
def _built() -> str:
    """Kept by the hash of its source: a behaviour's process may end without cleaning up."""
    digest = hashlib.sha256(_SOURCE.encode()).hexdigest()[:16]
    root = Path(tempfile.gettempdir()) / f"gpumem_alloc-own-{os.getuid()}"
    library = root / f"{digest}.so"
    if not library.is_file():
        root.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as made:
            source, built = Path(made) / "own.c", Path(made) / "libown.so"
            source.write_text(_SOURCE)
            command = ["gcc", "-O1", "-shared", "-fPIC", str(source), "-o", str(built), "-ldl"]
            subprocess.run(command, check=True)
            built.replace(library)
    return str(library)


class Own:
    """The allocator, and what it counts."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(_built())
        self.wrapper = torch.cuda.memory.CUDAPluggableAllocator(_built(), "own_malloc", "own_free")
        self._start = self.allocated, self.freed, self.held

    def pool(self, **options: bool) -> Any:
        """A pool over it."""
        return torch.cuda.MemPool(self.wrapper.allocator(), **options)

    def _long(self, name: str) -> Any:
        return ctypes.c_long.in_dll(self.library, name)

    @property
    def allocated(self) -> int:
        """Calls to allocate."""
        return int(self._long("allocated_count").value)

    @property
    def freed(self) -> int:
        """Calls to free."""
        return int(self._long("freed_count").value)

    @property
    def held(self) -> int:
        """Bytes that it has given out."""
        return int(self._long("held_bytes").value)

    def counts(self) -> tuple[int, int]:
        """Allocations and frees since this object was made."""
        return self.allocated - self._start[0], self.freed - self._start[1]

    def refuse(self, yes: bool) -> None:
        """Return null from now on."""
        self._long("refuse").value = int(yes)
