"""What the no-sharing mode costs: step time and card memory against PyTorch's default.

The rows are of benchmarks/results/isolation/, so that levels that are slow by design do not stand
among allocators that are meant to be fast. Made by

    python -m gpumem_alloc bench --workloads W,... --passes peaks,times --allocators
        native,no-caching,isolated-stream,isolated-packed,isolated-tensor,isolated-strict,memcheck
"""

from __future__ import annotations

from collections.abc import Sequence

from .cells import LOST, MARKS, NOTHING, failure, label, markdown, number, plain, ratio, rounds
from .summary import NATIVE, NO_CACHING, Entry, Summary
from .verdicts import LEVEL, why

LEVELS = ("isolated-stream", "isolated-packed", "isolated-tensor", "isolated-strict")
MEMCHECK = "memcheck"
BESIDE = (NO_CACHING, MEMCHECK)
# The most that a level may cost, as a ratio of step times to PyTorch's default.
MOST = {"isolated-stream": 1.02, "isolated-packed": 1.3}
HEAD = (
    *("workload", "allocator", "step / default", "step / no caching", "rounds"),
    *("card / default", "driver calls"),
)


def render(summary: Summary, source: str) -> str:
    """Return the table; empty where none of the levels was measured."""
    lines = [
        _line(summary, entry)
        for entry in summary.entries
        if entry.allocator in (*LEVELS, *BESIDE) and _has_level(summary, entry.workload)
    ]
    if not lines:
        return ""
    return (
        f"{markdown(HEAD, lines)}\n"
        "step / default: equal steps against PyTorch's default allocator, median and 95 % "
        "interval; step / no caching: the same against PyTorch without its cache (cudaMalloc and "
        "cudaFree each time), in the level's own session, so not the quotient of two rows. card: "
        "the card's memory at its peak beyond what was used before; driver calls: of one run. ✗: "
        "the interval lies above what the level may cost (stream 1.02, packed 1.3), or tensor's "
        f"median against no caching is not below 1. Rounds: {MARKS}; –: not run.\n\n{source}\n"
        f"{_reasons(summary)}"
    )


def _reasons(summary: Summary) -> str:
    known = why()
    found = [
        f"- {plain(workload)}, {label(name)}: "
        f"{plain(known.get((workload, name, LEVEL), 'why is not known yet.'))}\n"
        for workload, name in losing(summary)
    ]
    return "\n" + "".join(found) if found else ""


def unexplained(summary: Summary) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the losing levels without a sentence, and the sentences without such a level."""
    lost = losing(summary)
    told = [(workload, name) for workload, name, measure in why() if measure == LEVEL]
    return [each for each in lost if each not in told], [each for each in told if each not in lost]


def render_costs(summary: Summary) -> str:
    """Return one line for each allocator: its lowest and highest figure over the workloads."""
    levels = [(name, label(name)) for name in (*BESIDE, *LEVELS)]
    lines = [
        [text, *_spans(summary, [e for e in summary.entries if e.allocator == name])]
        for name, text in levels
        if any(entry.allocator == name for entry in summary.entries)
    ]
    head = ("allocator", "workloads", "step / default", "card / default", "in the driver, s a run")
    return markdown(head, lines)


def _spans(summary: Summary, entries: Sequence[Entry]) -> list[str]:
    ratios = [e.times.to_native.median for e in entries if e.times and e.times.to_native]
    cards = [value for e in entries if (value := _card_ratio(summary, e)) is not None]
    seconds = [entry.driver.ms / 1e3 for entry in entries if entry.driver]
    return [str(len(entries)), _span(ratios, ".2f"), _span(cards, ".2f"), _span(seconds, ".2f")]


def _span(values: Sequence[float], form: str) -> str:
    if not values:
        return NOTHING
    return "–".join(dict.fromkeys(format(each, form) for each in (min(values), max(values))))


def losing(summary: Summary) -> list[tuple[str, str]]:
    """Return the workloads and levels that cost more than they may."""
    return [
        (entry.workload, entry.allocator)
        for entry in summary.entries
        if entry.allocator in LEVELS and is_losing(summary, entry)
    ]


def is_losing(summary: Summary, entry: Entry) -> bool:
    """Say whether a level costs more than it may on a workload; a run that failed does."""
    if entry.failed:
        return True
    mine = entry.times.to_native if entry.times else None
    if mine is None:
        return False  # not measured
    if entry.allocator in MOST:
        return mine.low > MOST[entry.allocator]
    if entry.allocator != "isolated-tensor":
        return False
    direct = entry.times.to_no_caching if entry.times else None
    return direct is not None and direct.median >= 1


def _has_level(summary: Summary, workload: str) -> bool:
    return any(summary.entry(workload, level) is not None for level in LEVELS)


def _line(summary: Summary, entry: Entry) -> Sequence[str]:
    head = [plain(entry.workload), label(entry.allocator)]
    mark = LOST if entry.allocator in LEVELS and is_losing(summary, entry) else ""
    if entry.failed:
        return [*head, f"{failure(entry)}{mark}", *[NOTHING] * 4]
    direct = entry.times.to_no_caching if entry.times and entry.allocator in LEVELS else None
    by_default = entry.allocator in MOST
    return [
        *head,
        ratio(entry.times.to_native if entry.times else None) + (mark if by_default else ""),
        ratio(direct) + ("" if by_default else mark),
        rounds(entry.times),
        number(_card_ratio(summary, entry), "{:.2f}"),
        number(entry.driver.calls if entry.driver else None),
    ]


def _card_ratio(summary: Summary, entry: Entry) -> float | None:
    native = summary.entry(entry.workload, NATIVE)
    theirs = native.peaks.card_bytes if native and native.peaks else None
    mine = entry.peaks.card_bytes if entry.peaks else None
    return mine / theirs if mine and theirs else None
