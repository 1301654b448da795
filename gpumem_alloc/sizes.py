"""Amounts of memory as people write them, and devices as torch writes them."""

from __future__ import annotations

import re
import sys
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.errors import AllocatorError

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*")


def to_bytes(amount: int | str) -> int:
    """Return bytes for 1073741824, "30GiB" or "512 MiB". Raises ValueError for anything else."""
    if isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0:
        return amount
    match = _SIZE.fullmatch(amount) if isinstance(amount, str) else None
    if match and match[2].upper() in _UNITS:
        return int(float(match[1]) * _UNITS[match[2].upper()])
    raise ValueError(
        f"{amount!r} is no amount of memory.\n"
        "Amounts are bytes, or a number with B, KiB, MiB, GiB or TiB.\n"
        'For example 1073741824 or "1GiB".'
    )


def named_device(value: object) -> str | None:
    """Return "cuda:1" for it and for torch.device("cuda", 1), None for what names no device."""
    if isinstance(value, str):
        return value if re.fullmatch(r"cuda(:\d+)?", value) else None
    if getattr(value, "type", None) != "cuda":
        return None
    index = getattr(value, "index", None)
    return "cuda" if index is None else f"cuda:{index}"


def device_index(device: Any = None) -> int:
    """Return the index of 1, "cuda:1", torch.device("cuda", 1), or of the current device for None.

    Raises ValueError for a device that is no CUDA device.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        index = int(number) if number.isdigit() else None
    if device is not None and kind != "cuda":
        raise ValueError(
            f"{device!r} is no CUDA device.\n"
            "This allocator serves CUDA devices only.\n"
            'Give an index, "cuda:1", or nothing for the current device.'
        )
    return _current_device() if index is None else int(index)


def existing_device(device: Any = None) -> int:
    """Return the index of a device that there is, as far as can be told before ours is made."""
    index = device_index(device)
    if index >= 0 and (not _C.is_made() or index < _C.device_count()):
        return index
    raise AllocatorError(
        f"there is no device {index}.\n"
        "Devices are counted from 0, and CUDA_VISIBLE_DEVICES can hide some.\n"
        "Give the index of one that torch.cuda.device_count() counts, or nothing for the current "
        "one."
    )


def _current_device() -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_device())
