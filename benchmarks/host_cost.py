"""What memory costs on the host: PyTorch's allocators against ours, in nanoseconds per call.

    python -m benchmarks.host_cost --seconds 140

Each allocator runs in processes of its own, in alternating order, so that a machine that warms up
favours nobody. A row's ratio is the median over the rounds of ours / PyTorch's default in the same
round. Nothing runs on the GPU but what allocation itself asks of it. Needs g++ and CUDA's headers.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.compare_gpu import command_line, driver_version, names

HERE = Path(__file__).resolve().parent
ALLOCATORS = ("native", "expandable", "cudaMallocAsync", "paged@stock", "paged@bridge")
REFERENCE = "native"
LAST_HEADER = "crt/host_defines.h"  # PyTorch's own wheels lack it
RUN_SECONDS = 120
# The most that a cost through the bridge may be, as a part of native's; by the row's first word.
GOALS = {"pair": 0.25, "8": 0.1, "getDeviceStats": 1.0, "history": 0.5, "torch.empty": 1.0}

Row = dict[str, Any]
Ratios = dict[str, dict[str, float | None]]


def cuda_include() -> Path:
    """Return the folder with CUDA's headers: a toolkit's, or the nvidia wheels'."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    candidates = [Path(home) / "include" for home in [*filter(None, homes), "/usr/local/cuda"]]
    spec = importlib.util.find_spec("nvidia")
    for place in list(spec.submodule_search_locations or []) if spec else []:
        candidates += sorted(Path(place).glob("*/include"))
    for folder in candidates:
        if (folder / LAST_HEADER).is_file():
            return folder
    sys.exit(
        f"host_cost: {LAST_HEADER} is in none of {', '.join(map(str, candidates))}.\n"
        "The loops are compiled against PyTorch's headers, which include it.\n"
        "Install a CUDA toolkit, or the wheel nvidia-cuda-crt."
    )


def build(folder: Path) -> Path:
    """Compile the loops against the installed torch. Raises CalledProcessError if that fails."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("host_cost: torch is not installed")
    torch = Path(spec.submodule_search_locations[0])
    library = folder / "host_cost.so"
    subprocess.run(
        [
            *("g++", "-std=c++20", "-O2", "-fPIC", "-shared", str(HERE / "host_cost.cpp")),
            *(f"-isystem{torch / 'include'}", f"-isystem{cuda_include()}"),
            *("-o", str(library), f"-L{torch / 'lib'}", "-lc10", "-lc10_cuda"),
        ],
        check=True,
    )
    return library


def run_worker(allocator: str, library: Path, extra: list[str]) -> Row:
    """Measure one allocator in a process of its own; a failure is a row with `error`."""
    command = [sys.executable, "-m", "benchmarks.host_cost_worker", "--allocator", allocator]
    command += ["--library", str(library), *extra]
    row: Row = {"allocator": allocator}
    try:
        done = subprocess.run(
            command, cwd=HERE.parent, capture_output=True, text=True, timeout=RUN_SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return row | {"error": f"no end after {RUN_SECONDS} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if done.returncode != 0 or not lines:
        end = " | ".join(done.stderr.strip().splitlines()[-4:])
        return row | {"error": f"exit code {done.returncode}: {end}"}
    return dict(json.loads(lines[-1][4:]))


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Run rounds while the next one fits in the time that is left."""
    rows: list[Row] = []
    begin, longest_s = time.monotonic(), 0.0
    extra = ["--pairs", str(arguments.pairs), "--tries", str(arguments.tries)]
    with tempfile.TemporaryDirectory(prefix="host_cost-") as folder:
        library = build(Path(folder))
        for index in range(arguments.rounds):
            started = time.monotonic()
            if index and started - begin + longest_s > arguments.seconds:
                break
            for allocator in arguments.allocators[:: -1 if index % 2 else 1]:
                row = run_worker(allocator, library, extra) | {"round": index}
                rows.append(row)
                shown = row.get("error") or f"512 B: {row['ns']['pair 512']} ns"
                print(f"round {index}, {allocator}: {shown}", flush=True)
            longest_s = max(longest_s, time.monotonic() - started)
    return rows


def costs(rows: list[Row], allocator: str) -> dict[str, float | None]:
    """Return the median of each cost over the rounds, in ns."""
    runs = [row["ns"] for row in rows if row["allocator"] == allocator and "ns" in row]
    kinds = dict.fromkeys(kind for run in runs for kind in run)
    return {kind: _median([run.get(kind) for run in runs]) for kind in kinds}


def ratios(rows: list[Row], allocator: str) -> dict[str, float | None]:
    """Return the median over the rounds of a cost / the reference's in the same round."""
    references = {
        row["round"]: row["ns"] for row in rows if row["allocator"] == REFERENCE and "ns" in row
    }
    found: dict[str, list[float | None]] = {}
    for row in rows:
        if row["allocator"] != allocator or "ns" not in row or row["round"] not in references:
            continue
        for kind, ns in row["ns"].items():
            base = references[row["round"]].get(kind)
            usable = ns is not None and base is not None and base > 0
            found.setdefault(kind, []).append(ns / base if usable else None)
    return {kind: _median(each) for kind, each in found.items()}


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


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
        cells = [_cell(by_name[name].get(kind), "{:.2f} ×") for name in others]
        lines.append(f"| {kind} | {_cell(ns, '{:,.0f}')} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(value: float | None, shape: str) -> str:
    return "–" if value is None else shape.format(value)


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


def write(rows: list[Row], path: Path) -> None:
    """Write the rows and what they were measured on."""
    machines = [row["machine"] for row in rows if "machine" in row]
    results = {
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        "command": command_line(),
        "machine": {**machines[0], "driver": driver_version(), "cores": os.cpu_count()},
        "ratios": {
            name: ratios(rows, name) for name in dict.fromkeys(r["allocator"] for r in rows)
        },
        "rows": [{key: row[key] for key in row if key != "machine"} for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocators", type=names, default=list(ALLOCATORS))
    parser.add_argument("--rounds", type=int, default=6, help="at most")
    parser.add_argument("--seconds", type=float, default=140.0, help="for all rounds together")
    parser.add_argument("--pairs", type=int, default=20_000, help="calls in one try")
    parser.add_argument("--tries", type=int, default=5, help="in each process; the best counts")
    parser.add_argument("--out", type=Path, default=HERE / "out" / "host_cost.json")
    arguments = parser.parse_args()
    rows = measure(arguments)
    if not any("ns" in row for row in rows):
        sys.exit("host_cost: no run succeeded; what failed is said above")
    write(rows, arguments.out)
    print("\n" + render(rows))
    for failure in failures(rows):
        print(f"not met: {failure}")
    print(f"results: {arguments.out}")


if __name__ == "__main__":
    main()
