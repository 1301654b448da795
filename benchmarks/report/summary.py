"""From rows to figures: one Entry for each workload and allocator of a Setting.

Card memory. What the card says beyond its use before the run (NVML, polled from another process),
the worst of the runs that were alone on the card. base is what native's card holds beyond its
allocator (context, libraries), in the same session; card_ratio = (card peak - base) / live peak,
and utilisation is its inverse. live is the allocator's own peak of bytes in use; where it tells
none, native's.

Step time. See intervals.py. The fastest native run is the one of PyTorch's allocators with the
smallest median of its steps, chosen anew in each lockstep group or round: which helps PyTorch, as
the luckiest of several runs is chosen. Workloads of which no times were taken fall back to the
steps of the peaks pass, in which driver calls were counted; `way` says so. Where such a pass was
resumed after PyTorch's default had run, they are compared with those of the sessions before.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..store import Results, Row
from . import losses
from .intervals import Interval, interval, measured, step_ratios
from .selection import (
    Setting,
    allocator_order,
    full_length,
    is_ours,
    is_pytorchs,
    newest_of_ours,
    same_work,
    settings,
    workload_order,
)

NATIVE, NO_CACHING = "native", "no-caching"
RIVALS = (NATIVE, "expandable", "cudaMallocAsync")  # the README's columns beside ours
LOCKSTEP, ROUNDS, PEAKS_PASS = "lockstep", "rounds", "peaks pass"
LEAST_ROUNDS = 3  # of programs that are compared as a whole


@dataclass(frozen=True)
class Peaks:
    """Memory at its peak: the worst of `runs` runs."""

    runs: int
    live_bytes: int | None
    reserved_bytes: int | None
    card_bytes: int | None
    card_spread_bytes: int  # between the runs
    base_bytes: int | None
    card_ratio: float | None  # (card - base) / live
    polls_per_second: float | None  # of the slowest poller
    longest_gap_ms: float | None

    @property
    def utilisation(self) -> float | None:
        """Return live / (card - base)."""
        return None if not self.card_ratio else 1 / self.card_ratio


@dataclass(frozen=True)
class Times:
    """Step times: medians over the rounds."""

    rounds: int
    way: str  # LOCKSTEP, ROUNDS, or PEAKS_PASS
    is_older: bool  # of a version of ours that is not that of the peaks
    fastest: tuple[str, ...]  # the natives that were the fastest of a group or round
    to_fastest: Interval | None
    to_native: Interval | None
    to_no_caching: Interval | None
    step_ms: float
    first_step_ms: float

    @property
    def undecided(self) -> str:
        """Say why these times decide nothing; empty if they do."""
        if self.way == PEAKS_PASS:
            return "one run each and not in turns"
        if self.to_fastest and self.to_fastest.steps == 1 and self.rounds < LEAST_ROUNDS:
            return f"one step a run, and fewer than {LEAST_ROUNDS} rounds"
        return ""


@dataclass(frozen=True)
class Driver:
    """The driver's memory calls of one run; the median over the runs."""

    runs: int
    calls: float
    ms: float
    second_half_calls: float | None
    second_half_ms: float | None
    synchronisations: float | None
    each: tuple[dict[str, Any], ...]  # every run's own


@dataclass(frozen=True)
class Entry:
    """Everything that is known of one workload under one allocator."""

    workload: str
    allocator: str
    doors: tuple[str, ...]
    peaks: Peaks | None
    times: Times | None
    driver: Driver | None
    retries: int | None
    ooms: int | None
    losses: str
    errors: tuple[str, ...]
    # Whole runs without the first step, of any version of ours, the newest session last: what two
    # workloads took is to be compared within one session, since hosts differ by a fifth.
    run_s_by_session: dict[int, float]
    over_lowest: float | None = None  # card peak / the lowest of RIVALS and its own
    over_all: float | None = None  # card peak / the lowest of all allocators

    @property
    def failed(self) -> bool:
        """Say whether no run succeeded."""
        return self.peaks is None and self.times is None


@dataclass(frozen=True)
class Summary:
    """The figures of one setting."""

    setting: Setting
    entries: list[Entry]

    def entry(self, workload: str, allocator: str) -> Entry | None:
        """Return one entry, if it was measured."""
        for each in self.entries:
            if (each.workload, each.allocator) == (workload, allocator):
                return each
        return None

    def workloads(self) -> list[str]:
        """Return the workloads in the table's order."""
        return list(dict.fromkeys(each.workload for each in self.entries))

    def allocators(self) -> list[str]:
        """Return the allocators in the table's order."""
        return sorted({each.allocator for each in self.entries}, key=allocator_order)


def summarise(results: Results) -> list[Summary]:
    """Return the figures of every setting, the newest first."""
    return [Summary(setting, _entries(setting)) for setting in settings(results)]


def _entries(setting: Setting) -> list[Entry]:
    rows = [row for row in setting.rows if row["kind"] in ("peaks", "times", "losses", "script")]
    found: list[Entry] = []
    for workload in sorted(dict.fromkeys(row["workload"] for row in rows), key=workload_order):
        mine = same_work(setting, [row for row in rows if row["workload"] == workload])
        names = sorted(dict.fromkeys(row["allocator"] for row in mine), key=allocator_order)
        made = [entry for name in names if (entry := _entry(setting, mine, name))]
        found += [_placed(entry, made) for entry in made]
    return found


def _entry(setting: Setting, rows: list[Row], name: str) -> Entry | None:
    plain = _plain(rows)
    alone = _chosen(setting, [row for row in plain if row.get("group") is None])
    timed = _timed(setting, plain, name)
    fixed = newest_of_ours(setting, [row for row in rows if row["kind"] == "losses"])
    chosen = _chosen(setting, plain)
    every = [*fixed, *chosen]
    mine = _of(every, name)
    if not mine:
        return None
    good = _good(_of(chosen, name))
    return Entry(
        workload=mine[0]["workload"],
        allocator=name,
        doors=tuple(sorted({row["door"] for row in good if row.get("door")})),
        peaks=_peaks(alone, name) or _peaks(chosen, name),
        times=_times(timed, name, {setting.version(row) for row in _of(chosen, name)}, setting),
        driver=_driver(_good(_of(alone, name))),
        retries=_most(good, "alloc_retries"),
        ooms=_most(good, "ooms"),
        losses=losses.compare(every, name),
        errors=tuple(dict.fromkeys(str(row["error"]) for row in mine if "error" in row)),
        run_s_by_session=_run_s_by_session(setting, full_length(_of(plain, name))),
    )


def timed_rows(summary: Summary, entry: Entry) -> list[Row]:
    """Return the rows that an entry's times come from."""
    rows = [row for row in summary.setting.rows if row["workload"] == entry.workload]
    rows = same_work(summary.setting, rows)
    timed = _timed(summary.setting, _plain(rows), entry.allocator)
    return _alike(_of(timed, entry.allocator))


def _plain(rows: Iterable[Row]) -> list[Row]:
    kinds = ("peaks", "times", "script")
    return [row for row in rows if row["kind"] in kinds and not row.get("deterministic")]


def _timed(setting: Setting, plain: list[Row], name: str) -> list[Row]:
    """Return the rows of a workload that times come from; the peaks pass only without others."""
    timed = _chosen(setting, [row for row in plain if row["kind"] in ("times", "script")])
    if any(row.get("step_ms") for row in _of(timed, name)):
        return timed
    return _chosen(setting, [row for row in plain if row["kind"] == "peaks"])


def _alike(mine: list[Row]) -> list[Row]:
    """Keep the good ones, and of these those in lockstep if there are any: they count more."""
    good = [row for row in _good(mine) if row.get("step_ms")]
    return [row for row in good if row.get("group") is not None] or good


def _chosen(setting: Setting, rows: list[Row]) -> list[Row]:
    """Return the whole runs that count for one purpose, of ours the newest version's."""
    return full_length(newest_of_ours(setting, rows))


def _of(rows: Iterable[Row], allocator: str) -> list[Row]:
    return [row for row in rows if row["allocator"] == allocator]


def _good(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if "error" not in row]


def _most(rows: Iterable[Row], field: str) -> int | None:
    known = [int(row[field]) for row in rows if row.get(field) is not None]
    return max(known, default=None)


def _peaks(rows: list[Row], name: str) -> Peaks | None:
    """Return the peaks of one allocator among the rows of its workload."""
    mine = _good(_of(rows, name))
    if not mine:
        return None
    natives = _good(_of(rows, NATIVE))
    alone = [row for row in mine if row.get("group") is None and row.get("card")]
    cards = [int(row["card"]["peak_bytes"]) for row in alone]
    ratios, bases = [], []
    for row, card_bytes in zip(alone, cards, strict=True):
        base_bytes = _base(row, natives)
        live_bytes = row.get("live_peak_bytes") or _most(natives, "live_peak_bytes")
        if base_bytes is not None and live_bytes:
            bases.append(base_bytes)
            ratios.append((card_bytes - base_bytes) / live_bytes)
    polls = [row["card"].get("polls_per_second") for row in alone]
    gaps = [row["card"].get("longest_gap_ms") for row in alone]
    return Peaks(
        runs=len(alone) or len(mine),
        live_bytes=_most(mine, "live_peak_bytes"),
        reserved_bytes=_most(mine, "reserved_peak_bytes"),
        card_bytes=max(cards, default=None),
        card_spread_bytes=max(cards, default=0) - min(cards, default=0),
        base_bytes=max(bases, default=None),
        card_ratio=max(ratios, default=None),
        polls_per_second=min((each for each in polls if each is not None), default=None),
        longest_gap_ms=max((each for each in gaps if each is not None), default=None),
    )


def _base(row: Row, natives: list[Row]) -> int | None:
    """Return the median of card peak - reserved peak over native's runs of the row's session.

    None where the card showed less than native had reserved: it was not all seen then.
    """
    usable = [each for each in natives if each.get("card") and each.get("reserved_peak_bytes")]
    near = [each for each in usable if each["session"] == row["session"]] or usable
    beyond = [each["card"]["peak_bytes"] - each["reserved_peak_bytes"] for each in near]
    base_bytes = int(statistics.median(beyond)) if beyond else -1
    return base_bytes if base_bytes >= 0 else None


def _times(rows: list[Row], name: str, newest: set[str], setting: Setting) -> Times | None:
    """Return the times of one allocator among the timed rows of its workload."""
    mine = _alike(_of(rows, name))
    if not mine:
        return None
    fastest: list[str] = []
    to_fastest, to_native, to_no_caching = [], [], []
    for row in mine:
        natives = _natives_beside(row, rows)
        if natives:
            best = min(natives, key=_median_step)
            fastest.append(best["allocator"])
            to_fastest.append(step_ratios(row["step_ms"], best["step_ms"]))
        to_native += [
            step_ratios(row["step_ms"], each["step_ms"]) for each in _of(natives, NATIVE)[:1]
        ]
        to_no_caching += [
            step_ratios(row["step_ms"], each["step_ms"]) for each in _of(natives, NO_CACHING)[:1]
        ]
    way = (
        LOCKSTEP
        if mine[0].get("group") is not None
        else PEAKS_PASS
        if mine[0]["kind"] == "peaks"
        else ROUNDS
    )
    return Times(
        rounds=len(mine),
        way=way,
        is_older=is_ours(name) and not newest & {setting.version(row) for row in mine},
        fastest=tuple(sorted(set(fastest), key=allocator_order)),
        to_fastest=interval(to_fastest),
        to_native=interval(to_native),
        to_no_caching=interval(to_no_caching),
        step_ms=statistics.median(map(_median_step, mine)),
        first_step_ms=statistics.median(row["step_ms"][0] for row in mine),
    )


def _run_s_by_session(setting: Setting, mine: list[Row]) -> dict[int, float]:
    found = {}
    for session in setting.sessions:
        good = _alike([row for row in mine if row["session"] == session])
        if told := [row["run_s"] for row in good if row.get("run_s")]:
            found[session] = statistics.median(told)
    return found


def _natives_beside(row: Row, rows: list[Row]) -> list[Row]:
    pytorchs = [each for each in _good(rows) if is_pytorchs(each["allocator"])]
    beside = [each for each in pytorchs if _beside(row, each)]
    if row["kind"] != "peaks" or _of(beside, NATIVE):
        return beside
    return [each for each in pytorchs if each["kind"] == "peaks" and each.get("step_ms")]


def _beside(row: Row, other: Row) -> bool:
    """Say whether two rows were measured so that their steps can be compared."""
    if not other.get("step_ms"):
        return False
    places = ("session", "group", "kind") + (("round",) if row.get("group") is None else ())
    return all(row.get(place) == other.get(place) for place in places)


def _median_step(row: Row) -> float:
    return float(np.median(measured(row["step_ms"])))


def _driver(rows: list[Row]) -> Driver | None:
    counted = [row["driver"] for row in rows if row.get("driver")]
    if not counted:
        return None

    def median(of: Callable[[dict[str, Any]], float | None]) -> float | None:
        known = [value for each in counted if (value := of(each)) is not None]
        return statistics.median(known) if known else None

    return Driver(
        runs=len(counted),
        calls=median(lambda each: sum(each["calls"].values())) or 0,
        ms=median(lambda each: sum(each["ms"].values())) or 0.0,
        second_half_calls=median(lambda each: each.get("second_half_calls")),
        second_half_ms=median(lambda each: each.get("second_half_ms")),
        synchronisations=median(lambda each: each.get("synchronisations")),
        each=tuple(counted),
    )


def _placed(entry: Entry, beside: Sequence[Entry]) -> Entry:
    """Return the entry with its card peak compared to those of its workload."""
    mine = _card(entry)
    known = {each.allocator: card for each in beside if (card := _card(each))}
    rivals = [card for name, card in known.items() if name in RIVALS]
    if mine is None or not rivals:
        return entry
    return replace(
        entry,
        over_lowest=mine / min(*rivals, mine),
        over_all=mine / min(known.values()),
    )


def _card(entry: Entry) -> int | None:
    return entry.peaks.card_bytes if entry.peaks else None
