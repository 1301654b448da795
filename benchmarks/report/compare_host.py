"""Files compared: those of host costs by allocator and kind of call, others as results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..store import Results, load, load_all
from .compare import Change, Comparison, compare, differences, judge, version
from .measures import figures
from .selection import is_ours

HOST_NOISE = 0.10  # assumed with few rounds

Costs = dict[tuple[str, str], list[float]]  # allocator and kind of call; ns in each round


def compare_files(before: Path, after: Path, threshold_percent: float) -> Comparison:
    """Compare two files of one format, host costs or results; a folder's results are merged.

    Raises ResultsError.
    """
    contents = [_host_costs(path) for path in (before, after)]
    if contents[0] is not None and contents[1] is not None:
        return _compare(contents[0], contents[1], threshold_percent)
    return compare(_results(before), _results(after), threshold_percent)


def _results(path: Path) -> Results:
    return load_all(sorted(path.glob("*.json"))) if path.is_dir() else load(path)


def _host_costs(path: Path) -> dict[str, Any] | None:
    """Return a file's content if it holds host costs."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # load() says what is wrong with it
    is_host = isinstance(content, dict) and "machine" in content and "rows" in content
    return content if is_host else None


def _compare(before: dict[str, Any], after: dict[str, Any], threshold_percent: float) -> Comparison:
    left, right = before["machine"], after["machine"]
    differing = differences(left, right)
    costs, others = _costs(before), _costs(after)
    return Comparison(
        threshold_percent,
        differing,
        (version(left), version(right)),
        list(_changes(costs, others, not differing, threshold_percent)),
        [", ".join(key) for key in costs if key not in others],
        [", ".join(key) for key in others if key not in costs],
    )


def _costs(content: dict[str, Any]) -> Costs:
    found: Costs = {}
    for row in content["rows"]:
        for kind, ns in row.get("ns", {}).items():
            if ns is not None:
                found.setdefault((row["allocator"], kind), []).append(float(ns))
    return found


def _changes(
    costs: Costs, others: Costs, is_same_machine: bool, threshold_percent: float
) -> Iterator[Change]:
    for (allocator, kind), ns in costs.items():
        if (other := others.get((allocator, kind))) is not None:
            measure = figures(kind, "ns", ns, other, HOST_NOISE, is_time=True)
            counts = is_ours(allocator)
            yield judge("host", allocator, measure, counts, is_same_machine, threshold_percent)
