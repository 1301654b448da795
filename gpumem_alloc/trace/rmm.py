"""RMM's allocation log: CSV with the columns Thread, Time, Action, Pointer, Size, Stream."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from gpumem_alloc.trace.errors import TraceError
from gpumem_alloc.trace.events import MAX_BYTES, Action, Trace, no_records

COLUMNS = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"]
ACTIONS = {
    "allocate": Action.ALLOC,
    "free": Action.FREE,
    "deallocate": Action.FREE,
    "allocate failure": Action.OOM,
}
DAY_NS = 24 * 3600 * 10**9
CLOCK = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?:[:.](\d{1,9}))?", re.ASCII)
MAX_NUMBER = (1 << 64) - 1

Row = tuple[int, int, int, int, int]


def read_rmm(path: Path, text: str) -> Trace:
    """Parse a log; raises TraceError naming the line.

    Clock times become nanoseconds since midnight of the first row's day. Integer times only number
    the rows: such a log has no clock. A row `allocate failure` is kept as an event that asks for
    nothing.
    """
    lines = text.splitlines()
    header = [name.strip() for name in lines[0].split(",")] if lines else []
    if sorted(header) != sorted(COLUMNS):
        raise TraceError(path, f"not an RMM log: its first line is not {','.join(COLUMNS)}")
    order = [header.index(name) for name in COLUMNS]
    lines = [line for line in lines[1:] if line]
    if not lines:
        raise TraceError(path, "the log has no rows")
    has_times = ":" in lines[0].split(",")[order[1]] if lines[0].count(",") == 5 else False
    rows: list[Row] = []
    for number, line in enumerate(lines, start=2):
        try:
            rows.append(parse_row(line, order, has_times))
        except (ValueError, KeyError, IndexError):
            raise TraceError(path, f"row {number}: cannot read {line[:80]!a}") from None
    events = no_records(len(rows))
    for name, column in zip(
        ("time_ns", "action", "address", "bytes", "stream"), zip(*rows, strict=True), strict=True
    ):
        events[name] = column
    if has_times:
        events["time_ns"] = past_midnight(events["time_ns"].astype(np.int64))
    else:
        events["time_ns"] = np.arange(len(rows), dtype=np.uint64)
    return Trace(name=path.name, events=events, has_times=has_times)


def parse_row(line: str, order: list[int], has_times: bool) -> Row:
    """Return time, action, address, bytes and stream of a row.

    Raises ValueError, KeyError or IndexError if it is not one.
    """
    fields = line.split(",")
    if len(fields) != len(order):
        raise ValueError("wrong number of fields")
    _, time, action, pointer, size, stream = (fields[index].strip() for index in order)
    time_ns = clock_ns(time) if has_times else number(time)
    kind = ACTIONS[action]
    if kind is Action.OOM:
        return time_ns, kind, 0, 0, 0
    size_bytes = number(size)
    if size_bytes >= MAX_BYTES:
        raise ValueError("a size of 1 EiB or more")
    return time_ns, kind, number(pointer), size_bytes, number(stream)


def number(text: str) -> int:
    """Read a decimal or hexadecimal number of 64 bits, or what C prints for a null pointer."""
    if text == "(nil)":
        return 0
    value = int(text, 16) if text[:2] in ("0x", "0X") else int(text)
    if not 0 <= value <= MAX_NUMBER:
        raise ValueError("not a number of 64 bits")
    return value


def clock_ns(text: str) -> int:
    """Read a clock time such as 12:34:56:789012 as nanoseconds since midnight."""
    match = CLOCK.fullmatch(text)
    if match is None:
        raise ValueError("not a clock time")
    hours, minutes, seconds, fraction = match.groups()
    fraction_ns = int((fraction or "0").ljust(9, "0"))
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 10**9 + fraction_ns


def past_midnight(
    times_ns: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Add a day wherever the clock jumps back by more than half a day."""
    days = np.cumsum(np.diff(times_ns, prepend=times_ns[:1]) < -DAY_NS // 2)
    return times_ns + days * DAY_NS
