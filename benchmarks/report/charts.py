"""The charts of a report, each from one Summary; None where nothing of the kind was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..store import Row
from . import capacity_table
from .cells import rounds
from .intervals import Interval
from .picture import GIB, LIVE, Bar, colour, figure, held_panel
from .readme_table import COLUMNS
from .selection import OURS, allocator_order, is_ours, newest_of_ours, same_work
from .summary import Entry, Summary

LEAST = "base + peak live"  # what nothing can stay below
MOST_LINES = 7  # in one chart of memory over time


def timelines(
    summary: Summary, workload: str, most: int | None = MOST_LINES
) -> dict[str, list[list[float]]]:
    """Return ms and bytes on the card of one run per allocator: the run with the highest peak."""
    rows = [row for row in summary.setting.rows if row["workload"] == workload]
    rows = same_work(summary.setting, rows)
    alone = [
        row for row in rows if (row.get("card") or {}).get("timeline") and not row.get("group")
    ]
    alone = [row for row in newest_of_ours(summary.setting, alone) if row["kind"] != "losses"]
    best: dict[str, Row] = {}
    for row in sorted(alone, key=lambda row: row["card"]["peak_bytes"]):
        best[row["allocator"]] = row
    wanted = sorted(best, key=lambda name: (name not in COLUMNS, allocator_order(name)))
    return {name: best[name]["card"]["timeline"] for name in wanted[:most]}


def over_time(summary: Summary, workload: str) -> Any | None:
    """Draw memory over time, every allocator on one axis; None without such rows."""
    lines = timelines(summary, workload)
    if not lines:
        return None
    made, (panel,) = figure(8.4, 3.4)
    for name, points in lines.items():
        seconds, gib = [at / 1e3 for at, _ in points], [size / GIB for _, size in points]
        main = name in COLUMNS
        panel.plot(
            seconds, gib, color=colour(name), label=name, lw=1.8 if main else 1.0,
            alpha=1.0 if main else 0.7, zorder=3 if is_ours(name) else 2,
        )  # fmt: skip
    if (least := _least_bytes(summary, workload)) is not None:
        panel.axhline(least / GIB, color=LIVE, lw=1.0, ls="--", label=LEAST)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("seconds since the card was first asked")
    panel.set_ylabel("GiB on the card")
    panel.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return made


def _least_bytes(summary: Summary, workload: str) -> int | None:
    """Return base + live at its peak: what no allocator can stay below."""
    native = summary.entry(workload, "native")
    peaks = native.peaks if native else None
    if peaks is None or peaks.base_bytes is None or peaks.live_bytes is None:
        return None
    return peaks.base_bytes + peaks.live_bytes


def card_bars(summary: Summary, workload: str) -> Any:
    """Draw the card's peak under each allocator, with a line at base + live."""
    entries = [entry for entry in summary.entries if entry.workload == workload]
    made, (panel,) = figure(max(4.0, 1.6 + 0.62 * len(entries)), 3.4)
    held_panel(panel, bars(summary, entries), LEAST)
    panel.set_ylabel("GiB on the card, at the peak")
    return made


def bars(summary: Summary, entries: Sequence[Entry]) -> list[Bar]:
    """Return a bar of each entry's card peak."""
    return [
        Bar(
            entry.workload,
            entry.allocator,
            entry.peaks.card_bytes if entry.peaks else None,
            _least_bytes(summary, entry.workload) or 0,
        )
        for entry in entries
    ]


def our_ratios(summary: Summary) -> list[tuple[Entry, Interval]]:
    """Return each workload's step time of ours / the fastest native's."""
    return [
        (entry, entry.times.to_fastest)
        for entry in summary.entries
        if entry.allocator == OURS and entry.times and entry.times.to_fastest
    ]


def step_intervals(summary: Summary) -> Any | None:
    """Draw ours' step time / the fastest native's as dots with their intervals."""
    found = our_ratios(summary)
    if not found:
        return None
    made, (panel,) = figure(8.4, 1.2 + 0.3 * len(found))
    for place, (entry, ratio) in enumerate(reversed(found)):
        is_decided = entry.times is not None and not entry.times.undecided
        tint = colour(OURS) if ratio.reaches_one() else LIVE
        tint = tint if is_decided else colour("native")
        panel.plot([ratio.low, ratio.high], [place, place], color=tint, lw=2)
        panel.plot(ratio.rounds, [place] * len(ratio.rounds), "|", color=tint, ms=6, alpha=0.6)
        panel.plot(ratio.median, place, "o", color=tint, ms=5)
    panel.axvline(1.0, color=colour("native"), lw=1)
    names = [f"{entry.workload} ({rounds(entry.times)})" for entry, _ in reversed(found)]
    panel.set_yticks(range(len(found)), names, fontsize=8)
    panel.set_ylim(-0.6, len(found) - 0.4)
    panel.set_xscale("log")  # one row is 50 times slower, most within a tenth
    panel.set_xticks(_ratio_ticks(found))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()
    panel.grid(axis="x", lw=0.4, alpha=0.5)
    panel.set_xlabel("step time / fastest of PyTorch's; left of 1 ours is faster")
    return made


def _ratio_ticks(found: list[tuple[Entry, Interval]]) -> list[float]:
    """Return the ticks of a logarithmic axis of ratios, from below the least to the greatest."""
    low, high = min(each.low for _, each in found), max(each.high for _, each in found)
    ticks = (0.1, 0.2, 0.5, 0.7, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    return [each for each in ticks if low / 1.2 <= each <= high * 1.2]


def capacity_bars(summary: Summary) -> Any | None:
    """Draw what fits under each limit, as a part of what fits under the default."""
    found = {
        place: sizes
        for place, by_name in capacity_table.sizes(summary).items()
        if (sizes := {name: row.get("size") or 0 for name, row in by_name.items()}).get("native")
    }
    if not found:
        return None
    names = [name for name in COLUMNS if any(name in sizes for sizes in found.values())]
    made, (panel,) = figure(8.4, 1.2 + 0.17 * len(found) * len(names))
    height = 0.8 / len(names)
    for at, name in enumerate(names):
        for place, sizes in enumerate(found.values()):
            if name in sizes:
                y, part = (
                    place + (at - (len(names) - 1) / 2) * height,
                    sizes[name] / sizes["native"],
                )
                panel.barh(y, part, height, color=colour(name))
                panel.text(part, y, f" {sizes[name]:,}", ha="left", va="center", fontsize=7)
        panel.plot([], [], color=colour(name), lw=6, label=name)
    labels = [f"{workload}, {capacity_table.limit_name(limit)}" for workload, limit in found]
    panel.set_yticks(range(len(found)), labels, fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.08)
    panel.set_xlabel("largest size / that of the default; the figures are the sizes")
    panel.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return made


def driver_bars(summary: Summary) -> Any | None:
    """Draw the driver's time of one run, whole and its second half."""
    entries = [entry for entry in summary.entries if entry.driver and entry.allocator in COLUMNS]
    workloads = list(dict.fromkeys(entry.workload for entry in entries))
    if not workloads:
        return None
    names = [name for name in COLUMNS if any(entry.allocator == name for entry in entries)]
    made, (panel,) = figure(8.4, 1.2 + 0.16 * len(workloads) * len(names))
    height = 0.8 / len(names)
    for entry in entries:
        if entry.driver is not None:
            at = names.index(entry.allocator) - (len(names) - 1) / 2
            y, tint = workloads.index(entry.workload) + at * height, colour(entry.allocator)
            panel.barh(y, entry.driver.ms, height, color=tint, alpha=0.45)
            panel.barh(y, entry.driver.second_half_ms or 0, height, color=tint)
    for name in names:
        panel.plot([], [], color=colour(name), lw=6, label=name)
    panel.set_yticks(range(len(workloads)), workloads, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlabel("ms in the driver's memory calls; full colour: in the second half of the run")
    panel.set_xscale("symlog", linthresh=1.0)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return made
