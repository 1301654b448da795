"""What changed from one set of results to another, beyond noise and past a threshold.

    found = compare(load(a), load(b), threshold_percent=2.0)
    print(found.text())
    found.changed  # something of ours got worse by more than the threshold, beyond noise

Noise. Step times are compared step by step, and the two bootstrap intervals (steps and rounds drawn
anew) must not overlap. Ratios to the fastest native must not overlap either, their rounds' medians
included. Card peaks must differ by more than the runs of either side do, and by 0.5 %. Other
figures' ranges over the runs must not meet; of fewer than four runs a noise is assumed besides, and
said.

A native run that got slower is the machine's doing, so only rows of ours make `changed` true (all
do, where none is ours). Times in ms count only where there is no ratio to a native run of the same
group or round, and where both sides are of one kind of machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..store import Results
from .cells import label
from .losses import EQUAL
from .measures import Measure, capacities, measures
from .selection import is_ours
from .summary import Entry, Summary, summarise, timed_rows

MACHINE = ("gpu", "gpu_bytes", "driver", "kernel", "cores", "torch", "cuda", "python")


@dataclass(frozen=True)
class Change:
    """One measure on both sides."""

    workload: str
    allocator: str
    measure: str
    unit: str
    before: float | None
    after: float | None
    percent: float | None  # above 0: more than before
    is_worse: bool
    is_beyond_noise: bool
    is_past_threshold: bool  # worse, beyond noise, and by more than was asked
    counts: bool  # for `changed`
    note: str  # on what the judgement rests


@dataclass(frozen=True)
class Comparison:
    """All measures that both sides have, and what only one has."""

    threshold_percent: float
    differing: dict[str, tuple[Any, Any]]  # fields of the environment
    versions: tuple[str, str]
    changes: list[Change]
    only_before: list[str]
    only_after: list[str]

    @property
    def changed(self) -> bool:
        """Say whether something got worse past the threshold."""
        return any(each.is_past_threshold and each.counts for each in self.changes)

    def text(self) -> str:
        """Return the comparison for a terminal."""
        beyond = [each for each in self.changes if each.is_beyond_noise]
        lines = [self._machines(), f"gpumem_alloc {self.versions[0]} -> {self.versions[1]}", ""]
        if beyond:
            lines += _columns([HEAD, *map(_cells, beyond)])
        kept = len(self.changes) - len(beyond)
        lines += [*[""][: len(beyond)], f"unchanged within noise: {kept} of {len(self.changes)}"]
        for words, names in (("only in A", self.only_before), ("only in B", self.only_after)):
            if names:
                lines.append(f"{words}: {', '.join(names)}")
        past = [each for each in self.changes if each.is_past_threshold and each.counts]
        whose = "of ours, " if any(is_ours(each.allocator) for each in self.changes) else ""
        lines.append(
            f"{whose}worse by more than {self.threshold_percent:g} %: {len(past)}"
            + "".join(f"\n  {each.workload}, {each.allocator}: {each.measure}" for each in past)
        )
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return everything as one object."""
        return asdict(self) | {"changed": self.changed}

    def _machines(self) -> str:
        if not self.differing:
            return "same kind of machine and software (nothing tells two machines of a kind apart)"
        pairs = [f"{name} {a} -> {b}" for name, (a, b) in self.differing.items()]
        return f"NOT the same: {', '.join(pairs)}; times in ms are shown and not judged"


def compare(before: Results, after: Results, threshold_percent: float) -> Comparison:
    """Compare the newest settings of two results. A threshold of 2 stands for 2 %."""
    a, b = (next(iter(summarise(each)), None) for each in (before, after))
    if a is None or b is None:
        return Comparison(threshold_percent, {}, ("nothing", "nothing"), [], [], [])
    left, right = a.setting.environment, b.setting.environment
    differing = differences(left, right)
    names = _names(a, b)
    other_names = _names(b, a)
    return Comparison(
        threshold_percent,
        differing,
        (version(left), version(right)),
        list(_changes(a, b, not differing, threshold_percent)),
        [name for name in names if name not in other_names],
        [name for name in other_names if name not in names],
    )


def _names(summary: Summary, other: Summary) -> list[str]:
    """Name the entries, with their number of steps where the other side's workload has another."""
    found = []
    for entry in summary.entries:
        beside = other.entry(entry.workload, entry.allocator)
        is_same = beside is None or _are_same_work(summary, entry, other, beside)
        steps = "" if is_same else f" ({len(timed_rows(summary, entry)[0]['step_ms'])} steps)"
        found.append(f"{entry.workload}/{entry.allocator}{steps}")
    return found


def _are_same_work(a: Summary, entry: Entry, b: Summary, other: Entry) -> bool:
    """Say whether two entries are of runs as long; False shows a workload that has changed."""
    counts = [
        {len(row["step_ms"]) for row in timed_rows(summary, each) if row["kind"] != "script"}
        for summary, each in ((a, entry), (b, other))
    ]
    return not all(counts) or bool(counts[0] & counts[1])


def differences(left: dict[str, Any], right: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return in what two environments differ that times depend on."""
    pairs = {name: (left.get(name), right.get(name)) for name in MACHINE}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def version(environment: dict[str, Any]) -> str:
    """Return which gpumem_alloc was measured."""
    return f"{environment.get('gpumem_alloc')} ({environment.get('git_id')})"


def _changes(
    a: Summary, b: Summary, is_same_machine: bool, threshold_percent: float
) -> Iterator[Change]:
    pairs = [
        (entry, other)
        for entry in a.entries
        if (other := b.entry(entry.workload, entry.allocator)) is not None
        and _are_same_work(a, entry, b, other)
    ]
    has_ours = any(is_ours(entry.allocator) for entry, _ in pairs)
    for entry, other in pairs:
        counts = is_ours(entry.allocator) or not has_ours
        yield from _outcomes(entry, other, counts)
        for measure in measures(a, entry, b, other):
            place = entry.workload, entry.allocator
            yield judge(*place, measure, counts, is_same_machine, threshold_percent)
    for workload, allocator, measure in capacities(a, b):
        counts = is_ours(allocator)
        yield judge(workload, allocator, measure, counts, is_same_machine, threshold_percent)


def judge(
    workload: str,
    allocator: str,
    found: Measure,
    counts: bool,
    is_same_machine: bool,
    threshold_percent: float,
) -> Change:
    """Hold one measure against the threshold."""
    percent = 100 * (found.after / found.before - 1) if found.before else None
    more = found.after - found.before
    is_worse = more < 0 if found.more_is_better else more > 0
    large = percent is None or abs(percent) > threshold_percent
    judged = is_same_machine or not found.is_absolute_time
    return Change(
        workload=workload,
        allocator=allocator,
        measure=found.name,
        unit=found.unit,
        before=found.before,
        after=found.after,
        percent=percent,
        is_worse=is_worse,
        is_beyond_noise=found.is_beyond_noise,
        is_past_threshold=is_worse and found.is_beyond_noise and large and judged,
        counts=counts and found.counts,
        note=found.note if judged else f"{found.note}; other machine",
    )


def _outcomes(entry: Entry, other: Entry, counts: bool) -> Iterator[Change]:
    """Yield what is no figure: runs that fail now, losses that differ now."""
    for measure, was, now, words in (
        ("fails", entry.failed, other.failed, "; ".join(other.errors)[:80]),
        ("losses", _differs(entry), _differs(other), f"{entry.losses} -> {other.losses}"),
    ):
        if was != now:
            yield Change(
                entry.workload, entry.allocator, measure, "", float(was), float(now), None,
                is_worse=now, is_beyond_noise=True, is_past_threshold=now, counts=counts,
                note=words,
            )  # fmt: skip


def _differs(entry: Entry) -> bool:
    return entry.losses.startswith("differ") and entry.losses != EQUAL


HEAD = ("workload", "allocator", "measure", "A", "B", "change", "", "judged by")


def _cells(change: Change) -> tuple[str, ...]:
    percent = "" if change.percent is None else f"{change.percent:+.1f} %"
    better = "worse" if change.is_worse else "better"
    mark = f"{better}{' !' if change.is_past_threshold and change.counts else ''}"
    name = f"{change.measure} {change.unit}".strip()
    figures = (_figure(change.before, change.unit), _figure(change.after, change.unit))
    return (
        change.workload, label(change.allocator), name, *figures, percent, mark, change.note,
    )  # fmt: skip


def _figure(value: float | None, unit: str) -> str:
    if value is None or not unit:
        return ""
    return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}"


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
