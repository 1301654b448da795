"""Whether ours meets what it is held to, and what is said where it does not.

Of each workload: ours holds the least card memory or within 1 % of it, among PyTorch's default,
expandable segments, cudaMallocAsync and itself; and the interval of its step times against the
fastest native run reaches 1.00, where runs took turns or rounds: single runs of the pass for
peaks, one after the other, swing by more than what is to be shown, and decide nothing. Also:
losses are equal, no run failed, and what fits under a limit is at least what fits under the
default and under expandable segments.

Rows that lose are in the tables with the rest. why.json has one sentence on each, by us (`level`:
on a level of the no-sharing mode that costs more than it may, see isolation_table.py):

    [{"workload": "gnn", "allocator": "paged", "measure": "time", "why": "..."}]
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..store import Row
from .losses import UNORDERED
from .selection import OURS, is_ours, newest_of_ours
from .summary import Entry, Summary

WHY = Path(__file__).resolve().parent / "why.json"
NEAR = 1.01  # card peak / the lowest
CARD, TIME, LOSSES, ERROR = "card", "time", "losses", "error"
CAPACITY, NO_MARGIN = "capacity", "no margin"
MEASURES = (CARD, TIME, LOSSES, ERROR, CAPACITY, NO_MARGIN)
LEVEL = "level"


@dataclass(frozen=True)
class Verdict:
    """One measure of one workload under one of our allocators; `met` None: not measured."""

    workload: str
    allocator: str
    measure: str
    met: bool | None
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what why.json knows it by."""
        return self.workload, self.allocator, self.measure


def of_entry(entry: Entry) -> list[Verdict]:
    """Return what is to be said of one entry of ours."""
    found: list[tuple[str, bool | None, str]] = []
    if entry.failed:
        found.append((ERROR, False, "; ".join(entry.errors) or "no run succeeded"))
        return [Verdict(entry.workload, entry.allocator, *each) for each in found]
    if entry.over_lowest is None:
        found.append((CARD, None, "card not asked, or no other allocator beside it"))
    else:
        over_percent = 100 * (entry.over_lowest - 1)
        shown = f"card peak {over_percent:.1f} % above the lowest"
        found.append((CARD, entry.over_lowest <= NEAR, shown))
    times = entry.times
    ratio = times.to_fastest if times else None
    if times is None or ratio is None:
        found.append((TIME, None, "no steps of a native run to compare with"))
    else:
        shown = f"step time {ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f}) of the fastest"
        if times.undecided:
            shown += f", {times.undecided}: not decided"
        found.append((TIME, None if times.undecided else ratio.reaches_one(), shown))
    differs = entry.losses.startswith("differ") or entry.losses == UNORDERED
    known = differs or entry.losses in ("equal",)
    found.append((LOSSES, not differs if known else None, f"losses {entry.losses}"))
    return [Verdict(entry.workload, entry.allocator, *each) for each in found]


def verdicts(summary: Summary, allocators: Iterable[str] | None = None) -> list[Verdict]:
    """Return the verdicts on ours: all of them, or those named."""
    wanted = None if allocators is None else set(allocators)
    found = [
        verdict
        for entry in summary.entries
        if is_ours(entry.allocator) and (wanted is None or entry.allocator in wanted)
        for verdict in of_entry(entry)
    ]
    more = [*_capacity(summary), *_no_margin(summary)]
    return found + [each for each in more if wanted is None or each.allocator in wanted]


def losing(summary: Summary, allocators: Iterable[str] | None = None) -> list[Verdict]:
    """Return the verdicts that are not met."""
    return [verdict for verdict in verdicts(summary, allocators) if verdict.met is False]


def newest(summary: Summary, kind: str) -> list[Row]:
    """Return the last row of each measurement of a kind, of ours by the newest version only."""
    setting = summary.setting
    order = list(setting.sessions)
    rows = [row for row in setting.rows if row["kind"] == kind]
    found: dict[tuple[object, ...], Row] = {}
    for workload in dict.fromkeys(row["workload"] for row in rows):
        mine = newest_of_ours(setting, [row for row in rows if row["workload"] == workload])
        for row in sorted(mine, key=lambda row: order.index(row["session"])):
            limits = row.get("limit_gb"), row.get("margin_percent")
            found[workload, row["allocator"], limits] = row
    return list(found.values())


def _capacity(summary: Summary) -> list[Verdict]:
    rows = newest(summary, "capacity")
    found = []
    for row in rows:
        if not is_ours(row["allocator"]) or ("error" in row and not row.get("size")):
            continue
        others = [
            other
            for other in rows
            if other["allocator"] in ("native", "expandable")
            and "error" not in other
            and (other["workload"], other["limit_gb"]) == (row["workload"], row["limit_gb"])
        ]
        best = max((other.get("size") or 0 for other in others), default=None)
        size = row.get("size") or 0
        limit = "the card" if row["limit_gb"] is None else f"{row['limit_gb']:g} GiB"
        text = f"{size} {row.get('unit', '')} in {limit}, PyTorch's best {best}"
        answers = [holds_as_much(row, other) for other in others]
        is_open = None in answers and False not in answers
        met = None if is_open or not answers else False not in answers
        text += ", a search was cut short: not decided" if is_open else ""
        found.append(Verdict(row["workload"], row["allocator"], CAPACITY, met, text))
    return found


def most(row: Row) -> float:
    """Return the largest size that may fit: more than was found where a search was cut short."""
    if row.get("complete", True):
        return float(row.get("size") or 0)
    return math.inf if row.get("fails_at") is None else float(row["fails_at"] - 1)


def holds_as_much(row: Row, other: Row) -> bool | None:
    """Say whether what fits reaches the other's; None where a search cut short leaves it open."""
    if (row.get("size") or 0) >= most(other):
        return True
    return False if most(row) < (other.get("size") or 0) else None


def _no_margin(summary: Summary) -> list[Verdict]:
    found = []
    for row in newest(summary, "no_margin"):
        if is_ours(row["allocator"]):
            fits, percent = row.get("fits"), row.get("margin_percent")
            does = {None: "was not decided", True: "runs", False: "does not run"}[fits]
            text = f"{does} with base + live + {percent} %"
            found.append(Verdict(row["workload"], row["allocator"], NO_MARGIN, fits, text))
    return found


def why() -> dict[tuple[str, str, str], str]:
    """Return the sentences on losing rows. Raises ValueError for a measure that does not exist."""
    found: dict[tuple[str, str, str], str] = {}
    entries: list[dict[str, Any]] = json.loads(WHY.read_text())
    for entry in entries:
        if entry["measure"] not in (*MEASURES, LEVEL):
            raise ValueError(f"{WHY.name}: no measure {entry['measure']!r}: {', '.join(MEASURES)}")
        found[entry["workload"], entry["allocator"], entry["measure"]] = entry["why"]
    return found


def unexplained(summary: Summary) -> tuple[list[Verdict], list[tuple[str, str, str]]]:
    """Return the losing rows of ours without a sentence, and the sentences without such a row."""
    sentences = why()
    rows = losing(summary, [OURS])
    missing = [row for row in rows if row.key not in sentences]
    explained = {row.key for row in rows}
    return missing, [key for key in sentences if key not in explained and key[2] != LEVEL]


def failures(summary: Summary) -> list[str]:
    """List what is wrong whatever the figures are: other losses than native's, runs of ours failed.

    A run that ended only because its time was over is not among them when another succeeded, nor
    are losses that differ where kernels are unordered: they are a sign, and no proof.
    """
    found = []
    for each in losing(summary):
        if each.measure in (LOSSES, ERROR) and UNORDERED not in each.text:
            native = summary.entry(each.workload, "native")
            too = " (under PyTorch's default it fails too)" if native and native.failed else ""
            found.append(f"{each.workload}, {each.allocator}: {each.text}{too}")
    return found
