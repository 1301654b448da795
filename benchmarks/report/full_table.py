"""docs/benchmarks.md: every allocator on every workload, and how each figure was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..workloads import WORKLOADS
from .cells import MARKS, label, markdown, plain
from .columns import (
    MEMORY_HEAD,
    SESSIONS_HEAD,
    TIMES_HEAD,
    behind,
    environment_lines,
    lost_keys,
    memory_cells,
    session_lines,
    times_cells,
)
from .summary import Summary

HEAD = """# Benchmarks

Made from `benchmarks/results/` by `python -m benchmarks.report.table --write`; do not edit.

How to read it:

- **live**: the most bytes that were in use at once, as the allocator counts its blocks.
  **card**: the card's memory at its peak beyond what was used before, as NVML says, polled by a
  process of its own (rate and longest gap are given under each table: a peak shorter than the
  gap can be missed).
- **base** is what PyTorch's default holds on the card beyond what its allocator reserved:
  context and libraries. **used** is live / (card - base).
- **over lowest** compares the card peak with the lowest of PyTorch's default, expandable
  segments, cudaMallocAsync and the row itself.
- **step / fastest** is the median of the ratios of equal steps to the fastest of PyTorch's
  allocators in the same lockstep group or round, with its 95 % interval; the first quarter of
  the steps is left out. The interval is a bootstrap over steps, so it covers this run's steps
  and not other processes; each round's own median says how much those differ. The fastest is
  chosen anew in each round, which favours PyTorch.
- **driver** counts calls of the driver's memory functions in one run, and their time, through
  CUPTI; after the slash, those of the second half of the run.
- Of ours only the newest version that was measured counts. ✗ marks where ours is not within 1 %
  of the lowest card peak, where the interval stays above 1.00, or where losses differ.
"""


def render(summaries: Sequence[Summary]) -> str:
    """Return the whole page."""
    head = f"{HEAD}- Rounds: {MARKS}.\n"
    if not summaries:
        return f"{head}\nNothing was measured yet.\n"
    return f"{head}\n" + "\n".join(_setting(summary) for summary in summaries)


def _setting(summary: Summary) -> str:
    environment = summary.setting.environment
    title = f"{environment.get('gpu')}, torch {environment.get('torch')}"
    parts = [f"## {plain(title)}\n", _environment(environment), _sessions(summary)]
    parts += [_workload(summary, workload) for workload in summary.workloads()]
    parts += [text for text in [_failed(summary)] if text]
    return "\n".join(parts)


def _environment(environment: dict[str, Any]) -> str:
    lines = [_plain(line) for line in environment_lines(environment)]
    return markdown(["environment (newest session)", ""], lines)


def _sessions(summary: Summary) -> str:
    lines = [[*_plain(line[:-1]), f"`{plain(line[-1])}`"] for line in session_lines(summary)]
    return markdown(SESSIONS_HEAD, lines)


def _workload(summary: Summary, workload: str) -> str:
    entries = [entry for entry in summary.entries if entry.workload == workload]
    known = WORKLOADS.get(workload.partition(" at ")[0])
    stresses = f"{known.stresses}.\n\n" if known else ""
    lost = lost_keys(summary)
    memory = markdown(MEMORY_HEAD, [_plain(memory_cells(entry, lost)) for entry in entries])
    times = markdown(TIMES_HEAD, [_plain(times_cells(entry, lost)) for entry in entries])
    notes = behind(entries)
    return f"### {plain(workload)}\n\n{stresses}{memory}\n{times}" + (
        f"\n{notes}\n" if notes else ""
    )


def _plain(cells: Sequence[str]) -> list[str]:
    return [plain(cell) for cell in cells]


def _failed(summary: Summary) -> str:
    lines = [
        [plain(entry.workload), plain(label(entry.allocator)), plain(error)[:400]]
        for entry in summary.entries
        for error in dict.fromkeys(entry.errors)
    ]
    if not lines:
        return ""
    return "### Runs that failed\n\n" + markdown(["workload", "allocator", "error"], lines)
