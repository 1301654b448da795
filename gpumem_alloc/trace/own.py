"""Our own trace file: a header and fixed-width records, memory-mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpumem_alloc.trace.errors import TraceError
from gpumem_alloc.trace.events import AT_START, MAX_BYTES, RECORD, Action, Records, Trace

MAGIC = b"GMATRACE"
VERSION = 1
HAS_TIMES = 1
WRAPPED = 2

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("record_bytes", "<u4"),
        ("count", "<u8"),
        ("flags", "<u4"),
        ("reserved", "<u4"),
    ]
)


def read_own(path: Path, device: int | None) -> Trace:
    """Map a file that `write_trace` or the event ring wrote; raises TraceError.

    Without `device` the first device that has events is taken.
    """
    header = _read_header(path)
    records = np.memmap(
        path, dtype=RECORD, mode="r", offset=HEADER.itemsize, shape=(int(header["count"]),)
    )
    if int(records["action"].max(initial=0)) > max(Action):
        raise TraceError(path, "damaged: it holds an action that this version does not know")
    if int(records["bytes"].max(initial=0)) >= MAX_BYTES:
        raise TraceError(path, "damaged: it holds a size of 1 EiB or more")
    is_start = (records["flags"] & AT_START) != 0
    if device is None:
        events = np.flatnonzero(~is_start)
        device = int(records["device"][events[0]]) if len(events) else 0
    mine = records["device"] == device
    if len(records) and not mine.any():
        raise TraceError(path, f"it has no events of device {device}")
    notes: tuple[str, ...] = ()
    if int(header["flags"]) & WRAPPED:
        notes = ("The event ring was full, so the oldest events are missing.",)
    return Trace(
        name=path.name,
        events=np.asarray(records[mine & ~is_start]),
        has_times=bool(int(header["flags"]) & HAS_TIMES),
        device=device,
        start=np.asarray(records[mine & is_start]),
        notes=notes,
    )


def _read_header(path: Path) -> np.void:
    size = path.stat().st_size
    if size < HEADER.itemsize:
        raise TraceError(path, f"truncated: {size} bytes are less than a header")
    header: np.void = np.fromfile(path, dtype=HEADER, count=1)[0]
    if header["magic"] != MAGIC:
        raise TraceError(path, "not one of our trace files")
    version = int(header["version"])
    if version != VERSION:
        reason = "made by a newer version of gpumem_alloc" if version > VERSION else "damaged"
        raise TraceError(path, f"{reason}: format {version}, this version reads {VERSION}")
    if int(header["record_bytes"]) != RECORD.itemsize:
        raise TraceError(path, f"damaged: records of {header['record_bytes']} bytes")
    present = (size - HEADER.itemsize) / RECORD.itemsize
    if int(header["count"]) != present:
        raise TraceError(
            path,
            f"truncated or damaged: {header['count']} records are announced, {present:g} follow",
        )
    return header


def own_file_bytes(events: Records, has_times: bool, start: Records | None = None) -> list[bytes]:
    """Return a trace file's parts in order: header, start state, events."""
    start = events[:0] if start is None else start
    header = np.zeros(1, dtype=HEADER)
    header["magic"] = MAGIC
    header["version"] = VERSION
    header["record_bytes"] = RECORD.itemsize
    header["count"] = len(start) + len(events)
    header["flags"] = HAS_TIMES if has_times else 0
    return [header.tobytes(), start.tobytes(), events.tobytes()]


def write_trace(trace: Trace, path: Path | str) -> None:
    """Write a trace in our own format; raises OSError."""
    with Path(path).open("wb") as file:
        for part in own_file_bytes(trace.events, trace.has_times, trace.start):
            file.write(part)
