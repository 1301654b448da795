"""What memory costs on the host: PyTorch's allocators, RMM's and ours, in nanoseconds per call.

    python -m benchmarks.host.host_cost --seconds 140

Each allocator runs in processes of its own, in alternating order, so that a machine that warms up
favours nobody. What else runs on a host only adds, for as long as a process lives and up to twice
the cost: a row shows the least of its rounds, and its ratio is that to the least of PyTorch's
default in the same rounds. Percentiles of single calls are medians over the rounds. Nothing runs on
the GPU but what allocation itself asks of it. Needs g++ and CUDA's headers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ..workers.environment import environment
from . import host_process
from .compiled_loops import CompilationError, compile_loops
from .host_cost_worker import PERCENTILES
from .host_process import is_installed, names, run_worker

HERE = Path(__file__).resolve().parent
PYTORCHS = ("native", "expandable", "cudaMallocAsync")
RMMS = ("rmm-pool", "rmm-arena", "rmm-async")
OURS = ("paged@stock", "paged@bridge")
REFERENCE = "native"
RUN_SECONDS = 120
# The most that a cost through the bridge may be, as a part of native's; by the row's first word.
GOALS = {"pair": 0.25, "8": 0.1, "getDeviceStats": 1.0, "history": 0.5, "torch.empty": 1.0}

Row = dict[str, Any]
Ratios = dict[str, dict[str, float | None]]


def default_allocators() -> list[str]:
    """Return what is measured if nobody says what; RMM's where it is installed."""
    return [*PYTORCHS, *(RMMS if is_installed("rmm") else ()), *OURS]


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Run rounds while the next one fits in the time; the file is written after every run."""
    rows: list[Row] = []
    machine = environment()
    begin, longest_s = time.monotonic(), 0.0
    extra = ["--pairs", str(arguments.pairs), "--tries", str(arguments.tries)]
    with tempfile.TemporaryDirectory(prefix="host_cost-") as folder:
        library = compile_loops("host_cost", Path(folder))
        for index in range(arguments.rounds):
            started = time.monotonic()
            if index and started - begin + longest_s > arguments.seconds:
                break
            for allocator in arguments.allocators[:: -1 if index % 2 else 1]:
                row = run_worker("host_cost_worker", allocator, library, extra, RUN_SECONDS)
                row["round"] = index
                rows.append(row)
                write(rows, arguments.out, machine)
                shown = row.get("error") or f"512 B: {row['ns']['pair 512']} ns"
                print(f"round {index}, {allocator}: {shown}", flush=True)
            longest_s = max(longest_s, time.monotonic() - started)
    return rows


def costs(rows: list[Row], allocator: str) -> dict[str, float | None]:
    """Return each cost in ns: the least of the rounds, of a percentile their median."""
    runs = [row["ns"] for row in rows if row["allocator"] == allocator and "ns" in row]
    kinds = dict.fromkeys(kind for run in runs for kind in run)
    return {kind: _of_rounds(kind, [run.get(kind) for run in runs]) for kind in kinds}


def ratios(rows: list[Row], allocator: str) -> dict[str, float | None]:
    """Return each cost / the reference's, both of the rounds in which both ran."""
    good = [row for row in rows if "ns" in row]
    shared = set.intersection(
        *(
            {row["round"] for row in good if row["allocator"] == name}
            for name in (allocator, REFERENCE)
        )
    )
    paired = [row for row in good if row["round"] in shared]
    base = costs(paired, REFERENCE)
    return {kind: _ratio(ns, base.get(kind)) for kind, ns in costs(paired, allocator).items()}


def _ratio(ns: float | None, base: float | None) -> float | None:
    return ns / base if ns is not None and base is not None and base > 0 else None


def _of_rounds(kind: str, values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return statistics.median(known) if is_single_call(kind) else min(known)


def is_bound(rows: list[Row], allocator: str, kind: str) -> bool:
    """Say whether the cost lies above what was measured: see at_least in the worker."""
    return any(kind in row.get("at_least", ()) for row in rows if row["allocator"] == allocator)


def is_single_call(kind: str) -> bool:
    """Say whether a cost is a percentile of single calls."""
    return kind.startswith(("allocate ", "free "))


def render(rows: list[Row]) -> str:
    """Return a table: the reference in ns, every other allocator as a part of it."""
    order = list(dict.fromkeys(row["allocator"] for row in rows))
    others = [name for name in order if name != REFERENCE]
    by_name = {name: ratios(rows, name) for name in others}
    lines = [
        f"| ns per call | {REFERENCE} | {' | '.join(others)} |",
        "|---" * (len(order) + 1) + "|",
    ]
    for kind, ns in costs(rows, REFERENCE).items():
        if is_single_call(kind):
            continue
        cells = [
            _cell(ratio := by_name[name].get(kind), _shape(ratio), is_bound(rows, name, kind))
            for name in others
        ]
        lines.append(f"| {kind} | {_cell(ns, '{:,.0f}')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def render_latencies(rows: list[Row]) -> str:
    """Return a table of single calls in ns, p50 / p99 / p99.99; empty if none were timed."""
    order = list(dict.fromkeys(row["allocator"] for row in rows))
    by_name = {name: costs(rows, name) for name in order}
    calls = dict.fromkeys(
        kind.rpartition(" ")[0]
        for found in by_name.values()
        for kind in found
        if is_single_call(kind)
    )
    if not calls:
        return ""
    lines = [f"| ns, {' / '.join(PERCENTILES)} | {' | '.join(order)} |"]
    lines.append("|---" * (len(order) + 1) + "|")
    for call in calls:
        cells = []
        for name in order:
            values = [by_name[name].get(f"{call} {each}") for each in PERCENTILES]
            text = " / ".join(_cell(value, "{:,.0f}") for value in values)
            bound = is_bound(rows, name, f"{call} {PERCENTILES[0]}")
            cells.append("–" if None in values else f"> {text}" if bound else text)
        lines.append(f"| {call} | {' | '.join(cells)} |")
    clocks = [row["clock_ns"] for row in rows if "clock_ns" in row]
    lines += ["", f"What reading the clock takes, {max(clocks):.0f} ns at most, is taken off."]
    return "\n".join(lines)


def _shape(ratio: float | None) -> str:
    """Return how a ratio is written: two digits, three where two would leave one or none."""
    return "{:.3f} ×" if ratio is not None and ratio < 0.0995 else "{:.2f} ×"


def _cell(value: float | None, shape: str, is_bound: bool = False) -> str:
    return "–" if value is None else ("> " if is_bound else "") + shape.format(value)


def failures(rows: list[Row]) -> list[str]:
    """List the runs that failed, and the costs through the bridge that miss their goal."""
    found = [f"{row['allocator']}: {row['error']}" for row in rows if "error" in row]
    through_bridge = {row["allocator"] for row in rows if row.get("door") == "bridge"}
    for name in sorted(through_bridge):
        for kind, ratio in ratios(rows, name).items():
            goal = GOALS.get(kind.split()[0])
            if goal is not None and (ratio is None or ratio > goal):
                shown = "not measured" if ratio is None else f"{ratio:.3f} of {REFERENCE}'s"
                found.append(f"{name}, {kind}: {shown}, goal {goal}")
    return found


def write(rows: list[Row], path: Path, machine: dict[str, Any]) -> None:
    """Write the rows, their ratios and what they were measured on, if there is anything."""
    if not any("ns" in row for row in rows):
        return
    every = {name: ratios(rows, name) for name in dict.fromkeys(r["allocator"] for r in rows)}
    host_process.write(rows, path, machine, ratios=every)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocators", type=names, default=default_allocators())
    parser.add_argument("--rounds", type=int, default=6, help="at most")
    parser.add_argument("--seconds", type=float, default=140.0, help="for all rounds together")
    parser.add_argument("--pairs", type=int, default=20_000, help="calls in one try")
    parser.add_argument("--tries", type=int, default=5, help="in each process; the best counts")
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "host_cost.json")
    arguments = parser.parse_args()
    try:
        rows = measure(arguments)
    except CompilationError as error:
        sys.exit(f"host_cost: {error}")
    if not any("ns" in row for row in rows):
        sys.exit("host_cost: no run succeeded; what failed is said above")
    print("\n" + render(rows) + "\n\n" + render_latencies(rows))
    for failure in failures(rows):
        print(f"not met: {failure}")
    print(f"results: {arguments.out}")


if __name__ == "__main__":
    main()
