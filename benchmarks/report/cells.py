"""How figures are written in tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..allocators import ALLOCATORS, find
from .intervals import Interval
from .selection import is_ours
from .summary import LOCKSTEP, PEAKS_PASS, Entry, Times

MIB = 1 << 20
NOTHING = "–"
LOST = " ✗"
ALONE_MARK, PEAKS_MARK, OLDER_MARK = "°", "†", "‡"
MARKS = (
    f"{ALONE_MARK}: runs one after the other; {PEAKS_MARK}: of the peaks pass, one run each with "
    f"driver calls counted, which decides nothing; {OLDER_MARK}: by an older version of ours; no "
    "mark: in lockstep, step by step in turns"
)


def mib(count: float | None) -> str:
    """Write bytes in MiB."""
    return NOTHING if count is None else f"{count / MIB:,.0f}"


def number(value: float | None, shape: str = "{:,.0f}") -> str:
    """Write a number, or that there is none."""
    return NOTHING if value is None else shape.format(value)


def ratio(interval: Interval | None) -> str:
    """Write a ratio with its interval."""
    if interval is None:
        return NOTHING
    return f"{interval.median:.3f} ({interval.low:.3f}–{interval.high:.3f})"


def rounds(times: Times | None) -> str:
    """Write how many rounds, and in which way they were measured."""
    if times is None:
        return NOTHING
    marks = {LOCKSTEP: "", PEAKS_PASS: PEAKS_MARK}
    return f"{times.rounds}{marks.get(times.way, ALONE_MARK)}{OLDER_MARK if times.is_older else ''}"


def failure(entry: Entry) -> str:
    """Write in a word or two why there is no figure."""
    text = " ".join(entry.errors).lower()
    if "out of memory" in text or "out_of_memory" in text:
        return "out of memory"
    return "no end in time" if "no end after" in text else "failed"


def label(allocator: str) -> str:
    """Return the allocator's name for people."""
    if allocator in ALLOCATORS:
        return ALLOCATORS[allocator].label
    try:
        return find(allocator).label
    except ValueError:  # of a version that had it
        return f"ours, {allocator}" if is_ours(allocator) else allocator


def plain(text: object) -> str:
    """Make text that came from a file safe inside a cell of a table."""
    line = " ".join(str(text).split())
    for sign, instead in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "'")):
        line = line.replace(sign, instead)
    return line


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table; every line has as many cells as the head."""
    rows = [head, ["---"] * len(head), *lines]
    assert all(len(row) == len(head) for row in rows), rows
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
