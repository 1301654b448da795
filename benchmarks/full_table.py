"""docs/benchmarks.md: every allocator on every workload, and how each figure was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cells import (
    LOST,
    MARKS,
    NOTHING,
    failure,
    label,
    markdown,
    mib,
    number,
    plain,
    ratio,
    rounds,
)
from .summary import Entry, Summary
from .verdicts import CARD, LOSSES, TIME, verdicts
from .workloads import WORKLOADS

HEAD = """# Benchmarks

Made from `benchmarks/results/` by `python -m benchmarks.table --write`; do not edit.

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
    lines = [[plain(name), plain(value)] for name, value in environment.items()]
    return markdown(["environment (newest session)", ""], lines)


def _sessions(summary: Summary) -> str:
    head = ["session", "gpumem_alloc", "rows", "command"]
    lines = []
    for index, session in summary.setting.sessions.items():
        environment = session["environment"]
        count = sum(row["session"] == index for row in summary.setting.rows)
        version = f"{environment.get('gpumem_alloc')} ({environment.get('git_id')})"
        command = f"`{plain(session.get('command'))}`"
        lines.append([plain(session.get("date")), plain(version), str(count), command])
    return markdown(head, lines)


def _workload(summary: Summary, workload: str) -> str:
    entries = [entry for entry in summary.entries if entry.workload == workload]
    known = WORKLOADS.get(workload.partition(" at ")[0])
    stresses = f"{known.stresses}.\n\n" if known else ""
    lost = {each.key for each in verdicts(summary) if each.met is False}
    memory = markdown(
        ["", "runs", "live MiB", "reserved MiB", "card MiB", "used", "over lowest", "retries",
         "out of memory", "driver calls", "driver ms", "synchronisations"],
        [_memory(entry, lost) for entry in entries],
    )  # fmt: skip
    times = markdown(
        ["", "rounds", "step ms", "step / fastest, 95 %", "each round", "step / default, 95 %",
         "first step s", "losses"],
        [_times(entry, lost) for entry in entries],
    )  # fmt: skip
    return f"### {plain(workload)}\n\n{stresses}{memory}\n{times}\n{_notes(entries)}"


def _memory(entry: Entry, lost: set[tuple[str, str, str]]) -> list[str]:
    peaks, driver = entry.peaks, entry.driver
    name = plain(label(entry.allocator))
    if entry.failed or peaks is None:
        return [name, "0", failure(entry), *[NOTHING] * 9]
    card = mib(peaks.card_bytes)
    if peaks.card_spread_bytes:
        card += f" (spread {mib(peaks.card_spread_bytes)})"
    card += LOST if (entry.workload, entry.allocator, CARD) in lost else ""
    over = None if entry.over_lowest is None else 100 * (entry.over_lowest - 1)
    halves = ("calls", "second_half_calls", "ms", "second_half_ms")
    calls, later_calls, ms, later_ms = (getattr(driver, each, None) for each in halves)
    return [
        name,
        str(peaks.runs),
        mib(peaks.live_bytes),
        mib(peaks.reserved_bytes),
        card,
        number(peaks.utilisation and 100 * peaks.utilisation, "{:.1f} %"),
        number(over, "{:.1f} %"),
        number(entry.retries),
        number(entry.ooms),
        f"{number(calls)} / {number(later_calls)}" if driver else NOTHING,
        f"{number(ms, '{:,.1f}')} / {number(later_ms, '{:,.1f}')}" if driver else NOTHING,
        number(driver.synchronisations if driver else None),
    ]


def _times(entry: Entry, lost: set[tuple[str, str, str]]) -> list[str]:
    times, name = entry.times, plain(label(entry.allocator))
    losses = entry.losses + (LOST if (entry.workload, entry.allocator, LOSSES) in lost else "")
    if times is None:
        return [name, "0", *[NOTHING] * 5, losses]
    each_round = times.to_fastest.rounds if times.to_fastest else ()
    is_lost = (entry.workload, entry.allocator, TIME) in lost
    return [
        name,
        rounds(times),
        number(times.step_ms, "{:,.2f}"),
        ratio(times.to_fastest) + (LOST if is_lost else ""),
        " ".join(f"{value:.3f}" for value in each_round) or NOTHING,
        ratio(times.to_native),
        number(times.first_step_ms / 1e3, "{:,.2f}"),
        losses,
    ]


def _notes(entries: Sequence[Entry]) -> str:
    """Say what stands behind the figures of one workload."""
    peaks = [entry.peaks for entry in entries if entry.peaks]
    bases = [each.base_bytes for each in peaks if each.base_bytes is not None]
    rates = [each.polls_per_second for each in peaks if each.polls_per_second]
    gaps = [each.longest_gap_ms for each in peaks if each.longest_gap_ms]
    fastest = {name for entry in entries if entry.times for name in entry.times.fastest}
    said = []
    if bases:
        said.append(f"Base {mib(max(bases))} MiB.")
    if rates and gaps:
        said.append(
            f"Card polled {min(rates):,.0f} times a second, longest gap {max(gaps):.0f} ms."
        )
    if fastest:
        said.append(f"Fastest of PyTorch's: {', '.join(sorted(fastest))}.")
    return " ".join(said) + "\n" if said else ""


def _failed(summary: Summary) -> str:
    lines = [
        [plain(entry.workload), plain(label(entry.allocator)), plain(error)[:400]]
        for entry in summary.entries
        for error in dict.fromkeys(entry.errors)
    ]
    if not lines:
        return ""
    return "### Runs that failed\n\n" + markdown(["workload", "allocator", "error"], lines)
