"""What the tables of all allocators say of one: a line on memory, a line on times.

docs/benchmarks.md and the HTML report show the same cells; each escapes them its own way.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from .cells import LOST, NOTHING, failure, label, mib, number, ratio, rounds
from .selection import OURS, is_ours, newest_of_ours
from .summary import Entry, Summary
from .verdicts import CARD, LOSSES, TIME, verdicts

Key = tuple[str, str, str]  # workload, allocator, measure
MEMORY_HEAD = (
    "", "runs", "live MiB", "reserved MiB", "card MiB", "used", "over lowest", "retries",
    "out of memory", "driver calls", "driver ms", "synchronisations",
)  # fmt: skip
TIMES_HEAD = (
    "", "rounds", "step ms", "step / fastest, 95 %", "each round", "step / default, 95 %",
    "first step s", "losses",
)  # fmt: skip


def lost_keys(summary: Summary) -> set[Key]:
    """Return what ours loses."""
    return {each.key for each in verdicts(summary) if each.met is False}


def memory_cells(entry: Entry, lost: set[Key]) -> list[str]:
    """Return one line of the table of memory."""
    peaks, driver = entry.peaks, entry.driver
    name = label(entry.allocator)
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


def times_cells(entry: Entry, lost: set[Key]) -> list[str]:
    """Return one line of the table of times."""
    times, name = entry.times, label(entry.allocator)
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


def behind(entries: Sequence[Entry]) -> str:
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
    return " ".join(said)


SESSIONS_HEAD = ("session", "gpumem_alloc", "rows", "card as found", "command")


def session_lines(summary: Summary) -> list[list[str]]:
    """Return a line on each session: when, with what, how many rows, and the card's state."""
    setting = summary.setting
    lines = []
    for index, session in setting.sessions.items():
        count = sum(row["session"] == index for row in setting.rows)
        found = _state(session["environment"])
        words = [session.get("date"), setting.version_of(index), count, found]
        lines.append([_text(word) for word in (*words, session.get("command"))])
    return lines


def _state(environment: dict[str, Any]) -> str:
    """Say how a session found the card: its clocks, its heat and who else was there."""
    names = ("sm_clock_mhz", "max_sm_clock_mhz", "temperature_c", "other_processes")
    clock, most, heat, others = (environment.get(name) for name in names)
    if clock is None:
        return NOTHING
    return f"{clock} of {_text(most)} MHz, {_text(heat)} °C, other processes: {_text(others)}"


def versions(summary: Summary, kinds: Container[str] | None = None) -> list[str]:
    """Return which gpumem_alloc the rows of ours are from that count in the README.

    Those of the default; of a results file without it, as of isolation, all of ours. With `kinds`:
    of rows of such a kind only.
    """
    setting = summary.setting
    every = [row for row in setting.rows if kinds is None or row["kind"] in kinds]
    rows = [row for row in every if row["allocator"] == OURS] or [
        row for row in every if is_ours(row["allocator"])
    ]
    places = dict.fromkeys((row["kind"], row["workload"]) for row in rows)
    counted = [
        row
        for place in places
        for row in newest_of_ours(setting, (r for r in rows if (r["kind"], r["workload"]) == place))
    ]
    return list(dict.fromkeys(setting.version(row) for row in counted))


def environment_lines(environment: dict[str, Any]) -> list[list[str]]:
    """Return names and values of an environment's block as text."""
    return [[name, _text(value)] for name, value in environment.items()]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOTHING if value is None else str(value)
