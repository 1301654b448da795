"""Statistics and control of the process's allocator."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.errors import translated
from gpumem_alloc.sizes import existing_device, named_device, to_bytes

_kept_errors: list[tuple[str, str]] = []
_warned: set[str] = set()
_MAX_KEPT = 64
_violations_told = 0  # how many there were at the last call, and the time of each device's newest
_told_until_ns: Counter[int] = Counter()


def errors() -> list[tuple[str, str]]:
    """Return (call, message) for calls that could not raise: frees, and hooks of torch.

    The first 64 are kept. A double free or a foreign pointer is the usual entry. What the
    no-sharing mode found is among them, with its kind as the call.
    """
    report_errors()
    return list(_kept_errors)


def report_errors() -> None:
    """Warn, once for each kind of call, of errors that a free or a hook could not raise."""
    report_fallback()
    fresh, total = _C.take_door_errors()
    for call, message in fresh:
        text = f"gpumem_alloc: {call} failed: {message} ({total} errors so far; errors())"
        _keep(call, message, text)
    for kind, message in _fresh_violations():
        _keep(kind, message, f"{message} (gpumem_alloc.isolation.violations())")


def _keep(call: str, message: str, warning: str) -> None:
    if len(_kept_errors) < _MAX_KEPT:
        _kept_errors.append((call, message))
    if call not in _warned:
        _warned.add(call)
        warnings.warn(warning, RuntimeWarning, stacklevel=4)


def _fresh_violations() -> list[tuple[str, str]]:
    """Return (kind, text) of what was found since the last call, but for frees: they said so."""
    global _violations_told
    count = _C.violation_count()
    if count == _violations_told:
        return []
    _violations_told = count
    found = [
        violation
        for device in range(_C.device_count())
        for violation in _C.isolation_report(device)["violations"]
        if violation["kind"] not in ("double free", "foreign pointer")
        and violation["found_at_ns"] > _told_until_ns[device]
    ]
    for violation in found:
        _told_until_ns[violation["device"]] = violation["found_at_ns"]
    return [(violation["kind"], violation["text"]) for violation in found]


def report_fallback() -> None:
    """Warn once if the card or its driver cannot map memory, so that `split` serves instead."""
    if "strategy" in _warned or not _C.is_made() or _C.options_in_force()["strategy"] != "paged":
        return
    devices = [index for index in range(_C.device_count()) if _C.strategy(index) == "split"]
    if devices:
        _warned.add("strategy")
        text = (
            f"gpumem_alloc: GPU {devices} cannot map memory piecewise (no virtual memory "
            "management, or its first call failed); strategy `split` serves it instead of `paged`"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def stats(device: Any = None) -> dict[str, int]:
    """Return the statistics of a device, by default the current one.

    Keys are those of torch.cuda.memory_stats ("allocated_bytes.all.current") and our own counters
    (csrc/core/statistics.def); sizes are bytes. All are 0 before the first allocation. Raises
    AllocatorError in a forked child, or if the device does not exist.
    """
    report_errors()
    with translated():
        statistics = _C.statistics(existing_device(device))
    flat: dict[str, int] = {}
    for name, value in statistics.items():
        if isinstance(value, dict):
            for pool, gauge in value.items():
                flat.update({f"{name}.{pool}.{metric}": n for metric, n in gauge.items()})
        else:
            flat[name] = value
    return flat


def trim(bytes: int | str | None = None, device: Any = None) -> int:
    """Give memory that no block uses back to the card, and return how many bytes were.

    `bytes` bounds what is given back, by default all of it; `device` None means every device. Waits
    for the work that used the memory last; for the device only after a CUDA graph's pool was
    released or a stream destroyed. Raises AllocatorError if the driver refuses.
    """
    report_errors()
    _refuse_device(bytes, "trim(device={!r})")
    amount = _C.max_request_bytes if bytes is None else to_bytes(bytes)
    if not _C.is_made():
        return 0
    with translated():
        devices = range(_C.device_count()) if device is None else [existing_device(device)]
        return sum(_C.trim(index, amount) for index in devices)


def reserve(bytes: int | str, device: Any = None, stream: int = 0) -> None:
    """Make `bytes` of memory ready, so that allocations on `stream` need no driver call.

    `stream` is a cudaStream_t as an integer, as torch.cuda.Stream.cuda_stream has it. Raises
    torch.OutOfMemoryError if the limit or the card cannot hold it.
    """
    report_errors()
    _refuse_device(bytes, 'reserve("1GiB", device={!r})')
    with translated():
        _C.reserve(existing_device(device), to_bytes(bytes), stream)


def set_limit(limit: int | float | str | None, device: Any = None) -> None:
    """Bound the memory held on a device, by default the current one.

    `limit` is bytes, "30GiB", a fraction of the card as a float in (0, 1], or None for the whole
    card. Below what is live, allocations fail until enough is freed. Raises ValueError for another
    amount, AllocatorError if the device does not exist.
    """
    report_errors()
    _refuse_device(limit, 'set_limit("30GiB", device={!r})')
    index = existing_device(device)
    with translated():
        card = _C.card_bytes(index)
        _C.set_limit(index, card if limit is None else _limit_bytes(limit, card))


def _refuse_device(amount: object, right: str) -> None:
    """Raise ValueError, with the right call in it, for a device in the place of an amount."""
    device = named_device(amount)
    if device is not None:
        raise ValueError(
            f"{device!r} is a device, and no amount of memory.\n"
            "The amount comes first in trim(), reserve() and set_limit(), and then the device.\n"
            f"For example gpumem_alloc.{right.format(device)}."
        )


def _limit_bytes(limit: int | float | str, card_bytes: int) -> int:
    if not isinstance(limit, float):
        return to_bytes(limit)
    if not 0.0 < limit <= 1.0:
        raise ValueError(
            f"{limit!r} is no fraction of the card.\n"
            "A float is taken for a fraction in (0, 1], an integer for bytes.\n"
            'Give 0.5, 16106127360 or "15GiB".'
        )
    return int(card_bytes * limit)


def audit() -> None:
    """Recount every invariant of the allocator. Raises AllocatorError that names the broken one."""
    report_errors()
    if _C.is_made():
        with translated():
            _C.audit()
