"""PyTorch's memory snapshots: pickles of plain data, read without executing anything.

A pickle is a program. `check_pickle` walks it first and refuses every instruction that could import
or call something, or that asks for more memory than the file is long; the unpickler below refuses
globals a second time.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

import numpy as np

from gpumem_alloc._C import check_pickle
from gpumem_alloc.trace.errors import TraceError
from gpumem_alloc.trace.events import ACTION_NAMES, MAX_BYTES, Action, Records, Trace, no_records
from gpumem_alloc.trace.start_state import start_state

Entry = dict[str, Any]
WITHOUT_ADDRESS = (Action.OOM, Action.SNAPSHOT, Action.OTHER)
MAX_TIME_US = 1 << 53  # some 285 years


class PlainUnpickler(pickle.Unpickler):
    """An unpickler for dicts, lists, tuples, strings and numbers only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse: plain data names no class or function."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a snapshot holds plain data")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse: plain data refers to nothing outside."""
        raise pickle.UnpicklingError("it refers to objects outside the file")


def load_plain(path: Path, data: bytes) -> object:
    """Load a pickle of plain data; raises TraceError."""
    refusal = check_pickle(data)
    if refusal:
        raise TraceError(path, refusal)
    try:
        return PlainUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise TraceError(path, f"damaged pickle: {type(error).__name__}: {error}") from None


def read_pytorch(path: Path, data: bytes, device: int | None) -> Trace:
    """Read the trace of one device from a snapshot; raises TraceError.

    Without `device` the first device that has events is taken.
    """
    snapshot = load_plain(path, data)
    traces = _device_traces(path, snapshot)
    with_events = [index for index, entries in enumerate(traces) if entries]
    if device is None:
        device = with_events[0] if with_events else 0
    if device not in with_events:
        raise TraceError(
            path, f"it has no events of device {device}: was the history recorded, and there?"
        )
    return _trace_of(path, snapshot, traces[device], device)


def traces_of_snapshot(path: Path, snapshot: object) -> list[Trace]:
    """Return the traces of all devices that have events, from a snapshot in memory."""
    traces = _device_traces(path, snapshot)
    return [
        _trace_of(path, snapshot, entries, device)
        for device, entries in enumerate(traces)
        if entries
    ]


def _device_traces(path: Path, snapshot: object) -> list[Any]:
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(traces, list):
        raise TraceError(path, "not a memory snapshot: it has no list 'device_traces'")
    return traces


def _trace_of(path: Path, snapshot: Any, entries: object, device: int) -> Trace:
    events = _events(path, entries, device)
    segments = snapshot.get("segments", [])
    if not _are_entries(segments):
        raise TraceError(path, "damaged: 'segments' is not a list of dicts")
    mine = [segment for segment in segments if segment.get("device", 0) == device]
    try:
        start = start_state(events, mine)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
        raise TraceError(path, "damaged: a segment lacks a field or holds a wrong value") from None
    return Trace(name=path.name, events=events, has_times=True, device=device, start=start)


def _events(path: Path, entries: object, device: int) -> Records:
    if not _are_entries(entries):
        raise TraceError(path, "damaged: a device's trace is not a list of dicts")
    events = no_records(len(entries))
    try:
        names = [entry["action"] for entry in entries]
        events["action"] = [ACTION_NAMES.get(name, Action.OTHER) for name in names]
        for column, field in (("bytes", "size"), ("stream", "stream"), ("address", "addr")):
            events[column] = _integers(entry.get(field, 0) for entry in entries)
        events["time_ns"] = _integers(entry.get("time_us", 0) for entry in entries)
        if any("pool_id" in entry for entry in entries):
            pools = [entry.get("pool_id", (0, 0)) for entry in entries]
            events["pool_first"] = _integers(first for first, _ in pools)
            events["pool_second"] = _integers(second for _, second in pools)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"an event lacks {error}" if isinstance(error, KeyError) else str(error)
        raise TraceError(path, f"damaged: {reason}") from None
    if int(events["bytes"].max(initial=0)) >= MAX_BYTES:
        raise TraceError(path, "damaged: it holds a size of 1 EiB or more")
    if int(events["time_ns"].max(initial=0)) >= MAX_TIME_US:
        raise TraceError(path, "damaged: it holds a time that cannot be")
    lacking = [entry["action"] for entry in entries if "addr" not in entry or "size" not in entry]
    if any(ACTION_NAMES.get(name, Action.OTHER) not in WITHOUT_ADDRESS for name in lacking):
        raise TraceError(path, "damaged: an event lacks its address or size")
    events["time_ns"] *= np.uint64(1000)
    events["device"] = device
    return events


def _are_entries(value: object) -> TypeGuard[list[Entry]]:
    return isinstance(value, list) and set(map(type, value)) <= {dict}


def _integers(values: Iterable[object]) -> list[int]:
    column = list(values)
    if not set(map(type, column)) <= {int}:
        raise TypeError("a field that must be a whole number is not one")
    return column  # type: ignore[return-value]
