"""Kernels of a case, launched with whatever pointers it has; each argument is checked by type."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, Protocol

Size = tuple[int, int]
_KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')


def signatures(source: str) -> dict[str, list[str]]:
    """The kernels of a source, and the types of their parameters."""
    return {
        name: [re.sub(r"\s*\w+$", "", parameter.strip()) for parameter in parameters.split(",")]
        for name, parameters in _KERNEL.findall(source)
    }


def compiled_path(folder: Path, group: str, wrong: bool) -> Path:
    """Where the compiled kernels of a group are kept."""
    return folder / f"{group}-{'wrong' if wrong else 'right'}"


class Address(int):
    """A pointer into the card's memory that no tensor stands for."""


class Module(Protocol):
    """Compiled kernels: nvrtc.py's on a card, host.py's on the stand-in card."""

    def launch(self, name: str, blocks: Size, threads: Size, values: list[Any]) -> None:
        """Launch on the current stream; `values` are of the types in the kernel's signature."""


class Kernels:
    """The kernels of one group, wrong or right."""

    def __init__(self, torch: Any, source: str, module: Module) -> None:
        self._torch = torch
        self._signatures = signatures(source)
        self._module = module

    def launch(self, name: str, blocks: int | Size, threads: int | Size, *arguments: Any) -> None:
        """Launch on the current stream. A pointer is a tensor or an Address; TypeError if not."""
        types = self._signatures[name]
        if len(types) != len(arguments):
            raise TypeError(f"{name} takes {len(types)} arguments, not {len(arguments)}")
        pairs = zip(types, arguments, strict=True)
        values = [_argument(self._torch, kind, argument) for kind, argument in pairs]
        self._module.launch(name, _size(blocks), _size(threads), values)


def _size(size: int | Size) -> Size:
    return size if isinstance(size, tuple) else (size, 1)


def _argument(torch: Any, kind: str, value: Any) -> Any:
    """Convert one argument to the C type of its parameter; TypeError if it is not of that type."""
    if kind.endswith("*"):
        if isinstance(value, Address):
            return ctypes.c_void_p(value)
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return ctypes.c_void_p(value.data_ptr())
    elif isinstance(value, float) and kind == "float":
        return ctypes.c_float(value)
    elif type(value) is int and kind in ("int", "long long"):
        return (ctypes.c_int if kind == "int" else ctypes.c_longlong)(value)
    raise TypeError(f"{value!r} for a parameter of type {kind}")


def pointers(values: list[Any]) -> Any:
    """Pointers to the values, as a launch takes them; the values must outlive them."""
    each = (ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
    return (ctypes.c_void_p * len(values))(*each)
