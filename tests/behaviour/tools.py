"""What behaviours share. They use PyTorch's own names and nothing of ours."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


class _Torch:
    """torch, imported when it is first used: the table is read where there is none."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch: Any = _Torch()


def version() -> tuple[int, int]:
    """The running torch's major and minor number."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def empty(size: int, **options: Any) -> Any:
    """A tensor of so many bytes on the card."""
    return torch.empty(size, dtype=torch.uint8, device="cuda", **options)


def filled(size: int, value: int) -> Any:
    """The same, of one value. Copied there, since the stand-in card has no kernels."""
    return torch.full((size,), value, dtype=torch.uint8).cuda()


def holds(tensor: Any, value: int) -> bool:
    """Whether all bytes of a tensor are `value`."""
    return bool((tensor.cpu() == value).all())


def stats(key: str) -> int:
    """One figure of memory_stats()."""
    return int(torch.cuda.memory_stats()[key])


def caught(kind: type[BaseException], call: Callable[[], object]) -> BaseException:
    """The exception that `call` must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def raised(kind: type[BaseException], call: Callable[[], object]) -> str:
    """The text of the exception that `call` must raise."""
    return str(caught(kind, call))


def segments(pool: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """The segments of a pool, or all."""
    return [
        segment
        for segment in torch.cuda.memory_snapshot()
        if pool is None or tuple(segment["segment_pool_id"]) == tuple(pool)
    ]


def segment_of(tensor: Any) -> dict[str, Any]:
    """The segment that a tensor lies in."""
    address = tensor.untyped_storage().data_ptr()
    (found,) = [
        segment
        for segment in torch.cuda.memory_snapshot()
        if 0 <= address - segment["address"] < segment["total_size"]
    ]
    return dict(found)


def block_of(tensor: Any) -> dict[str, Any]:
    """The block that a tensor is."""
    address = tensor.untyped_storage().data_ptr()
    (found,) = [block for block in segment_of(tensor)["blocks"] if block["address"] == address]
    return dict(found)


def pool_of(tensor: Any) -> tuple[int, int]:
    """The pool that a tensor's memory belongs to."""
    first, second = segment_of(tensor)["segment_pool_id"]
    return first, second


def live_blocks(pool: tuple[int, int]) -> int:
    """How many blocks of a pool are used by tensors."""
    return sum(
        block["state"] == "active_allocated"
        for segment in segments(pool)
        for block in segment["blocks"]
    )


def trace() -> list[dict[str, Any]]:
    """What has been recorded on this device."""
    traces = torch.cuda.memory._snapshot()["device_traces"]
    return list(traces[torch.cuda.current_device()])


def actions(entries: list[dict[str, Any]], *names: str) -> list[tuple[str, int]]:
    """Action and size of the entries, or of those with these actions."""
    return [(e["action"], e["size"]) for e in entries if not names or e["action"] in names]
