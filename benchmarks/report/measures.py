"""The figures that two results are compared by, each with how far it is beyond noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..store import Row
from .intervals import Interval, as_table, bootstrap, warm_up
from .summary import Entry, Peaks, Summary, timed_rows
from .verdicts import most, newest

MIB = 1 << 20
PEAK_NOISE = 0.005  # of the figure
CAPACITY_NOISE = 0.02  # how finely sizes are searched
ENOUGH_RUNS = 4  # whose ranges say enough: by chance those of four and four part in 3 % of cases
# Assumed with fewer runs.
FIRST_STEP_NOISE = 0.25
PROGRAM_NOISE = 0.10  # of a program that is compared as a whole
DRIVER_NOISE = 0.25
CALLS_NOISE = 0.05


@dataclass(frozen=True)
class Measure:
    """One figure on both sides, and whether the difference is beyond noise."""

    name: str
    unit: str
    before: float
    after: float
    is_beyond_noise: bool
    note: str
    more_is_better: bool = False
    is_absolute_time: bool = False
    counts: bool = True


def measures(a: Summary, entry: Entry, b: Summary, other: Entry) -> Iterator[Measure]:
    """Yield the measures that both sides have of one workload under one allocator."""
    if entry.peaks and other.peaks:
        yield from _peaks(entry.peaks, other.peaks)
    rows, other_rows = timed_rows(a, entry), timed_rows(b, other)
    ratio = entry.times.to_fastest if entry.times else None
    other_ratio = other.times.to_fastest if other.times else None
    if ratio and other_ratio:
        yield _step_ratio(ratio, other_ratio)
    if rows and other_rows:
        yield _step_time(rows, other_rows, counts=not (ratio and other_ratio))
        first, other_first = _first_steps(rows), _first_steps(other_rows)
        yield figures("first step", "ms", first, other_first, FIRST_STEP_NOISE, is_time=True)
    if entry.driver and other.driver:
        runs, other_runs = entry.driver.each, other.driver.each
        for name, unit, get, noise in DRIVER:
            values = [get(run) for run in runs], [get(run) for run in other_runs]
            yield figures(name, unit, *values, noise, is_time=unit == "ms")


DRIVER: tuple[tuple[str, str, Callable[[dict[str, Any]], float], float], ...] = (
    ("driver time", "ms", lambda each: float(sum(each["ms"].values())), DRIVER_NOISE),
    ("driver calls", "calls", lambda each: float(sum(each["calls"].values())), CALLS_NOISE),
)


def _first_steps(rows: Sequence[Row]) -> list[float]:
    return [float(row["step_ms"][0]) for row in rows]


def _peaks(peaks: Peaks, others: Peaks) -> Iterator[Measure]:
    for name, before, after in (
        ("card peak", peaks.card_bytes, others.card_bytes),
        ("reserved peak", peaks.reserved_bytes, others.reserved_bytes),
    ):
        if before is None or after is None:
            continue
        spread = max(peaks.card_spread_bytes, others.card_spread_bytes, PEAK_NOISE * before)
        yield Measure(
            name, "MiB", before / MIB, after / MIB, abs(after - before) > spread,
            f"{peaks.runs} and {others.runs} runs, spread or 0.5 %: {spread / MIB:,.0f} MiB",
        )  # fmt: skip


def _step_ratio(ratio: Interval, other: Interval) -> Measure:
    """Compare the ratios to the fastest native, each with its interval and rounds' medians."""
    name, unit = "step / fastest native", "×"
    if min(ratio.steps, other.steps) == 1:
        rounds = list(ratio.rounds), list(other.rounds)
        return figures(name, unit, *rounds, PROGRAM_NOISE, is_time=False)
    (low, high), (other_low, other_high) = _ends(ratio), _ends(other)
    note = f"{low:.3f}–{high:.3f} and {other_low:.3f}–{other_high:.3f}"
    is_apart = high < other_low or other_high < low
    return Measure(name, unit, ratio.median, other.median, is_apart, note)


def _ends(ratio: Interval) -> tuple[float, float]:
    return min(ratio.low, *ratio.rounds), max(ratio.high, *ratio.rounds)


def _step_time(rows: Sequence[Row], others: Sequence[Row], counts: bool) -> Measure:
    """Compare equal steps: each side over what both sides' medians of a step have in the middle."""
    steps = min(len(row["step_ms"]) for row in (*rows, *others))
    first = warm_up(steps)
    if steps == 1:
        runs = _first_steps(rows), _first_steps(others)
        return replace(
            figures("step time", "ms", *runs, PROGRAM_NOISE, is_time=True), counts=counts
        )
    left, right = (
        as_table([row["step_ms"][first:steps] for row in each]) for each in (rows, others)
    )
    middle = np.sqrt(np.median(left, axis=0) * np.median(right, axis=0))
    drawn = [bootstrap(table / middle, draw_rounds=True) for table in (left, right)]
    (low, high), (other_low, other_high) = (np.percentile(each, [2.5, 97.5]) for each in drawn)
    before, after = float(np.median(left / middle)), float(np.median(right / middle))
    typical = float(np.median(middle))
    rounds = f"rounds: {len(rows)} and {len(others)}"
    return Measure(
        "step time", "ms", before * typical, after * typical,
        bool(high < other_low or other_high < low), f"equal steps, {rounds}",
        is_absolute_time=True, counts=counts,
    )  # fmt: skip


def figures(
    name: str, unit: str, before: list[float], after: list[float], noise: float, is_time: bool
) -> Measure:
    """Compare figures of whole runs: their ranges must not meet.

    Ranges of few runs fail to meet by chance (those of two and two in one of three cases), so then
    the difference must also be larger than an assumed noise.
    """
    left, right = float(np.median(before)), float(np.median(after))
    is_apart = max(before) < min(after) or max(after) < min(before)
    note = f"ranges of {len(before)} and {len(after)} runs"
    if min(len(before), len(after)) < ENOUGH_RUNS:
        is_apart = is_apart and abs(right - left) > noise * max(left, right)
        note += f", and {100 * noise:.0f} %"
    return Measure(name, unit, left, right, is_apart, note, is_absolute_time=is_time)


def capacities(a: Summary, b: Summary) -> Iterator[tuple[str, str, Measure]]:
    """Yield workload, allocator and measure of what fits under each limit on both sides."""
    rows, others = _found(a), _found(b)
    for place in [each for each in rows if each in others]:
        workload, allocator, limit_gb = place
        pair = rows[place], others[place]
        size, other = (float(row.get("size") or 0) for row in pair)
        shown = "of the card" if limit_gb is None else f"in {limit_gb:g} GiB"
        if all(row.get("complete", True) for row in pair):
            is_apart = abs(other - size) > CAPACITY_NOISE * max(size, other)
            note = f"searched to {100 * CAPACITY_NOISE:.0f} %"
        else:
            highest = most(pair[0] if size < other else pair[1])  # of the smaller one
            is_apart = highest < max(size, other) * (1 - CAPACITY_NOISE)
            note = "a search was cut short"
        found = Measure(f"capacity {shown}", "size", size, other, is_apart, note, True)
        yield workload, allocator, found


def _found(summary: Summary) -> dict[tuple[str, str, float | None], Row]:
    return {
        (row["workload"], row["allocator"], row["limit_gb"]): row
        for row in newest(summary, "capacity")
        if "error" not in row
    }
