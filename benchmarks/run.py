"""What `make bench` runs: on a GPU native PyTorch against ours, else replay of recorded runs.

    make bench
    make bench BENCH="--seconds 120 --workloads gnn"      on a GPU
    make bench BENCH="--trace my_snapshot.pickle"         without one

Ends in a table, and a picture in benchmarks/out/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import compare_gpu
from benchmarks import old_table as table
from benchmarks.picture import Bar, draw
from benchmarks.workloads import WORKLOADS
from gpumem_alloc.cli.tables import print_replay
from gpumem_alloc.replay import DEFAULT_ALLOCATORS, replay
from gpumem_alloc.trace import TraceError, read_trace

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
TRACES = HERE / "traces"
console = Console()


def has_gpu() -> bool:
    """Say whether torch can use a GPU; asked in a process of its own, to start nothing in this."""
    query = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    asked = subprocess.run([sys.executable, "-c", query], check=False, capture_output=True)
    return asked.returncode == 0


def on_gpu(arguments: argparse.Namespace) -> None:
    """Measure on the GPU; ends the program if no run succeeded."""
    wanted = [missing for name in arguments.workloads for missing in WORKLOADS[name].missing]
    if wanted:
        console.print(f"installing {', '.join(wanted)}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", *wanted]
        subprocess.run(pip, check=False)  # a workload that still lacks its library is left out
    path = compare_gpu.compare(arguments)
    if path is None:
        sys.exit("bench: no run succeeded on this GPU; what failed is said above")
    results = json.loads(path.read_text())
    print("\n" + table.render(results, path.name))
    bars = [
        Bar(
            entry["workload"],
            entry["allocator"],
            entry.get("card_peak_bytes"),
            entry.get("live_peak_bytes", 0),
        )
        for entry in results["summary"]
    ]
    picture = arguments.picture or OUT / "gpu.png"
    draw(bars, f"Card memory at its peak, {results['machine']['gpu']}", "GiB", picture)
    console.print(f"results: {path}\npicture: {picture}", soft_wrap=True)


def by_replay(arguments: argparse.Namespace) -> None:
    """Replay recordings; ends the program if one cannot be read."""
    paths = arguments.trace or sorted(TRACES.glob("*.pickle.gz"))
    if not paths:
        sys.exit(f"bench: no recordings in {TRACES}")
    bars = []
    for path in paths:
        try:
            trace = read_trace(path)
            report = replay(trace, DEFAULT_ALLOCATORS, progress=lambda _: None)
        except TraceError as error:
            sys.exit(f"bench: {path.name}: {error}")
        name = path.name.split(".")[0]
        console.rule(name, align="left")
        print_replay(console, report, trace.notes)
        for result in report["results"]:
            held_bytes = None if result["oom"] else result["peak_reserved_bytes"]
            bars.append(Bar(name, result["allocator"], held_bytes, report["peak_live_bytes"]))
    picture = arguments.picture or OUT / "replay.png"
    draw(bars, "Memory reserved at its peak, by replay of recorded runs", "GiB", picture)
    console.print(
        "No GPU was found: these are recorded runs, replayed through models of PyTorch's policies "
        "and through our own code, with addresses only."
    )
    console.print(f"picture: {picture}", soft_wrap=True)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        prog="make bench", description=__doc__, parents=[compare_gpu.make_parser()],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--trace", type=Path, action="append", help="replay this file instead")
    parser.add_argument("--picture", type=Path, help="PNG file, instead of one in benchmarks/out/")
    parser.add_argument("--require-gpu", action="store_true", help="do not replay if there is none")
    arguments = parser.parse_args()
    if arguments.trace is None and has_gpu():
        on_gpu(arguments)
    elif arguments.require_gpu:
        sys.exit("bench: torch finds no GPU here")
    else:
        by_replay(arguments)


if __name__ == "__main__":
    main()
