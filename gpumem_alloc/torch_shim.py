"""Makes torch's memory functions answer under a pluggable allocator.

CUDAPluggableAllocator has no hook for statistics, so torch.cuda.memory_stats() and everything built
on it raise. All of torch's Python functions look up `torch._C._cuda_...` when they are called, so
these entries are replaced; each forwards to the original unless our allocator is the current one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpumem_alloc import _C, torch_limits, watch
from gpumem_alloc.control import report_errors
from gpumem_alloc.errors import translated

_ZERO = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
_GAUGES = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes",
    "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_COUNTERS = (
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
)  # fmt: skip

_torch: Any = None
_ours: Any = None


def install(torch: Any, ours: Any) -> None:
    """Replace torch's entries; `ours` is the torch._C allocator object. Once a process."""
    global _torch, _ours
    if _ours is not None:
        return
    _torch, _ours = torch, ours
    for name, replacement in _replacements().items():
        original = getattr(torch._C, name, None)
        if original is not None:
            setattr(torch._C, name, _routed(original, replacement))
    torch._C._cuda_changeCurrentAllocator = _explained(torch._C._cuda_changeCurrentAllocator)
    torch_limits.keep_autotuning_off(torch, is_current)
    torch_limits.explain_refusals(torch, is_current)


def is_current() -> bool:
    """Whether torch's current CUDA allocator is ours."""
    return _ours is not None and _torch._C._cuda_getAllocator() is _ours


def _routed(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if not is_current():
            return original(*arguments, **keywords)
        report_errors()
        with translated():
            return replacement(*arguments, **keywords)

    return call


def _explained(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """Putting ours in twice does nothing; too late, it says why."""

    @functools.wraps(change)
    def call(allocator: Any) -> None:
        if allocator is not _ours:
            change(allocator)
        elif not is_current():
            watch.refuse_late(_torch)
            try:
                change(allocator)
            except RuntimeError:
                raise watch.too_late("Another pluggable allocator is in place.") from None
            torch_limits.turn_autotuning_off(_torch)

    return call


def _replacements() -> dict[str, Callable[..., Any]]:
    return {
        "_cuda_memoryStats": _memory_stats,
        "_cuda_resetPeakMemoryStats": _reset_peak,
        "_cuda_resetAccumulatedMemoryStats": _reset_accumulated,
        "_cuda_getMemoryFraction": _get_fraction,
        "_cuda_memorySnapshot": _snapshot,
        **torch_limits.graph_tree_calls(),
        "_accelerator_isAllocatorInitialized": lambda: _torch.cuda.is_initialized(),
        "_accelerator_getDeviceStats": _accelerator_stats,
        "_accelerator_resetPeakStats": _reset_peak,
        "_accelerator_resetAccumulatedStats": _reset_accumulated,
        "_accelerator_emptyCache": lambda: _torch._C._cuda_emptyCache(),
    }


# --- statistics -----------------------------------------------------------------------------


def _torch_version() -> tuple[int, int]:
    major, minor = str(_torch.__version__).split(".")[:2]
    return int(major), int(minor)


def _memory_stats(device: int) -> dict[str, Any]:
    """Nested as torch's own, with the keys of the installed version."""
    stats = _accelerator_stats(device)
    if _torch_version() >= (2, 12):
        stats["num_oom_rejections"] = 0
    if _torch_version() >= (2, 13):
        stats["reserved_bytes_by_private_pools"] = {}
    return stats


def _accelerator_stats(device: int) -> dict[str, Any]:
    ours = _C.statistics(device)
    stats: dict[str, Any] = {name: ours[name] for name in _GAUGES + _COUNTERS}
    stats["oversize_allocations"] = dict(_ZERO)
    stats["oversize_segments"] = dict(_ZERO)
    stats["max_split_size"] = _max_split_size()
    return stats


def _max_split_size() -> int:
    megabytes = _C.options_in_force()["max_split_size_mb"]
    return megabytes << 20 if megabytes else -1


def _reset_peak(device: int) -> None:
    if _C.is_made():
        _C.reset_peak_statistics(device)


def _reset_accumulated(device: int) -> None:
    if _C.is_made():
        _C.reset_accumulated_statistics(device)


def _get_fraction(device: int) -> float:
    card = _C.card_bytes(device)
    return min(1.0, _C.limit(device) / card)


# --- snapshots --------------------------------------------------------------------------------


def _snapshot(request: tuple[Any, ...] | None = None) -> dict[str, Any]:
    """torch's schema. `request` is None, or (pool, pool, include_traces); (0, 0) is every pool."""
    pool = tuple(request[:2]) if request else (0, 0)
    devices = range(_C.device_count()) if _C.is_made() else range(0)
    segments = [_segment(entry) for device in devices for entry in _C.snapshot(device)]
    snapshot: dict[str, Any] = {
        "segments": [s for s in segments if pool == (0, 0) or s["segment_pool_id"] == pool],
        "device_traces": [[] for _ in devices],
        "external_annotations": [],
        "allocator_settings": _settings(),
    }
    if _torch_version() >= (2, 14):
        snapshot.update(host_segments=[], host_traces=[])
    return snapshot


def _segment(entry: dict[str, Any]) -> dict[str, Any]:
    blocks = entry["blocks"]
    active = [block for block in blocks if block["state"] != "inactive"]
    allocated = [block for block in blocks if block["state"] == "active_allocated"]
    return {
        "device": entry["device"],
        "address": entry["address"],
        "total_size": entry["bytes"],
        "allocated_size": sum(block["bytes"] for block in allocated),
        "active_size": sum(block["bytes"] for block in active),
        "requested_size": sum(block["requested_bytes"] for block in active),
        "stream": entry["stream"],
        "segment_type": "small" if entry["bytes"] <= 2 << 20 else "large",
        "segment_pool_id": tuple(entry["pool"]),
        "is_expandable": entry["is_expandable"],
        "frames": [],
        "blocks": [
            {
                "address": block["address"],
                "size": block["bytes"],
                "requested_size": block["requested_bytes"],
                "state": block["state"],
                "frames": [],
            }
            for block in blocks
        ],
    }


def _settings() -> dict[str, Any]:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "GPUMEM_ALLOC_CONF": _C.print_options_in_force(),
        "max_split_size": _max_split_size(),
        "garbage_collection_threshold": _C.options_in_force()["garbage_collection_threshold"],
        "expandable_segments": False,
    }
