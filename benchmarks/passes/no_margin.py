"""Does a workload run when the card has just what it needs, and 2 % of its live bytes?

What it needs is base + peak live, from rows of kind "peaks": base is what native's card holds
beyond its allocator's memory, that is card peak - reserved peak, and live is native's own peak of
bytes in use. So left = base + 1.02 * live stays free on the card, the ballast holds the rest, and
the workload runs once.

The base is an amount, not a moment. A context comes first, kernels and library handles when they
are first used; an allocator that has taken all that is left by then makes the driver fail, though
the sum would be enough. That counts as not running, and the error says which it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..workers.job import Job, Row
from .capacity import Room, lacked_memory

NATIVE = "native"
MARGIN_PERCENT = 2


@dataclass(frozen=True)
class Need:
    """What a workload takes of the card, allocators aside."""

    base_bytes: int
    live_bytes: int

    def with_margin(self, percent: float) -> int:
        """Return base + live + so many percent of live."""
        return self.base_bytes + round(self.live_bytes * (1 + percent / 100))


def need(workload: str, rows: Iterable[Row]) -> Need | None:
    """Return what a workload needs, by native's rows of kind "peaks"; None where none tells.

    Of several runs the largest base and the largest live count. Where the card showed less than
    native had reserved, it was not all seen.
    """
    runs = [row for row in peaks(workload, NATIVE, rows) if row.get("card")]
    bases = [row["card"]["peak_bytes"] - row["reserved_peak_bytes"] for row in runs]
    if max(bases, default=-1) < 0:
        return None
    return Need(max(bases), max(row["live_peak_bytes"] for row in runs))


def peaks(workload: str, allocator: str, rows: Iterable[Row]) -> list[Row]:
    """Return the full runs of kind "peaks" that ended well."""
    return [
        row
        for row in rows
        if row.get("kind") == "peaks"
        and (row["workload"], row["allocator"]) == (workload, allocator)
        and row.get("size") is None
        and "error" not in row
    ]


def job(workload: str, allocator: str, steps: int | None = None) -> Job:
    """Return the run, with the steps of the peaks.

    Driver calls are counted as they were there, since what counts them may take memory too.
    """
    return Job(workload, allocator, steps=steps, card=False, driver_calls=True)


def measure(
    wanted: Job,
    needed: Need,
    room: Room,
    run: Callable[[Job], Row],
    margin_percent: float = MARGIN_PERCENT,
) -> Row:
    """Run a job() once and return the row: `fits` is null where not memory but else failed.

    Raises BallastError where the card has not so much.
    """
    left = room.leave(needed.with_margin(margin_percent))
    begin = time.monotonic()
    row = run(wanted)
    failed = "error" in row
    driver = row.get("driver") or {}
    return row | {
        "kind": "no_margin",
        "margin_percent": margin_percent,
        "base_bytes": needed.base_bytes,
        "needed_live_bytes": needed.live_bytes,
        "left_bytes": left.free_bytes,
        "fits": None if failed and not lacked_memory(row) else not failed,
        "seconds": round(time.monotonic() - begin, 2),
        "retries": row.get("alloc_retries"),
        "synchronisations": driver.get("synchronisations"),
    }


def time_ratio(row: Row, rows: Iterable[Row]) -> float | None:
    """Return its run_s / the median of its unconstrained runs of equal steps; None if unknown."""
    free = sorted(
        each["run_s"]
        for each in peaks(row["workload"], row["allocator"], rows)
        if each.get("steps") == row.get("steps") and each.get("run_s")
    )
    if not free or not row.get("run_s"):
        return None
    middle = len(free) // 2
    median = free[middle] if len(free) % 2 else (free[middle - 1] + free[middle]) / 2
    return float(row["run_s"] / median)
