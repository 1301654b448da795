"""Run workloads under PyTorch's allocator and ours on the GPU, and write a results file.

    python -m benchmarks.compare_gpu --seconds 480
    python -m benchmarks.compare_gpu --allocators native,paged@stock,paged@bridge

Allocators are named as in benchmarks/allocators.py; `paged` goes through the bridge where that can
be built. Each run is a fresh process. Rounds alternate in order (native, expandable, paged, then
paged, expandable, native), so that a card that warms up favours nobody. After the first round every
workload runs for a few steps with deterministic kernels, native twice, to compare losses. The file
is written anew after every run: what was measured before an end from outside is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.allocators import PYTORCHS
from benchmarks.environment import environment
from benchmarks.job import Job
from benchmarks.old_summary import Row, failures, summarise
from benchmarks.process import run
from benchmarks.workloads import MAIN_WORKLOADS, WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ALLOCATORS = ("native", "expandable", "paged")
RUN_SECONDS = 240  # a single run that takes longer is ended and noted
FORMAT = 1


def run_worker(workload: str, allocator: str, extra: list[str], seconds: float) -> Row:
    """Run once in a process of its own; a failure is a row with `error`."""
    steps = int(extra[extra.index("--steps") + 1]) if "--steps" in extra else None
    job = Job(workload, allocator, steps, deterministic="--deterministic" in extra)
    return run(job, seconds) | {"machine": environment()}


class Comparison:
    """The rows so far, the clock, and the file they go to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.rows: list[Row] = []
        self.begin = time.monotonic()
        self.path: Path | None = arguments.out
        self.started = datetime.datetime.now(datetime.timezone.utc)

    def left_s(self) -> float:
        """Return the seconds that are left."""
        return float(self.arguments.seconds - (time.monotonic() - self.begin))

    def run(self) -> None:
        """Run rounds while the next group of runs fits in the time that is left."""
        cost_s: dict[str, float] = {}
        for index in range(self.arguments.rounds):
            if index == 1 and self.arguments.loss_steps:
                self.compare_losses()
            names = self.arguments.allocators[:: -1 if index % 2 else 1]
            for workload in self.arguments.workloads:
                if cost_s.get(workload, 0.0) > self.left_s():
                    continue
                before = time.monotonic()
                for name in names:
                    self.add(workload, name, index, self.steps())
                cost_s[workload] = time.monotonic() - before
        if self.arguments.rounds == 1 and self.arguments.loss_steps:
            self.compare_losses()

    def steps(self) -> list[str]:
        """Return the argument for another number of steps than usual."""
        return ["--steps", str(self.arguments.steps)] if self.arguments.steps else []

    def compare_losses(self) -> None:
        """Run with deterministic kernels; native first and last shows whether it repeats itself."""
        ours = [name for name in self.arguments.allocators if name not in PYTORCHS]
        for workload in self.arguments.workloads:
            for index, name in enumerate(["native", *ours, "native"]):
                steps = ["--steps", str(self.arguments.loss_steps)]
                self.add(workload, name, index, ["--deterministic", *steps])

    def add(self, workload: str, allocator: str, index: int, extra: list[str]) -> None:
        """Run once if there is time, tell, and write the file."""
        limit_s = min(RUN_SECONDS, self.left_s())
        if limit_s < 5:
            print(f"{workload}, {allocator}: left out, the time is over", flush=True)
            return
        row = run_worker(workload, allocator, extra, limit_s) | {"round": index}
        self.rows.append(row)
        print(one_line(row), flush=True)
        self.write()

    def write(self) -> None:
        """Write everything so far."""
        machines = [row["machine"] for row in self.rows if "machine" in row]
        if not machines:
            return
        if self.path is None:
            gpu = re.sub(r"[^a-z0-9]+", "-", machines[0]["gpu"].lower()).strip("-")
            self.path = RESULTS / f"{self.started:%Y-%m-%d}-{gpu}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        results = {
            "format": FORMAT,
            "date": f"{self.started:%Y-%m-%d %H:%M} UTC",
            "command": command_line(),
            "machine": {**machines[0], "driver": driver_version(), "cores": os.cpu_count()},
            "summary": summarise(self.rows),
            "rows": [{key: row[key] for key in row if key != "machine"} for row in self.rows],
        }
        self.path.write_text(json.dumps(results, indent=1) + "\n")


def command_line() -> str:
    """Return what this program was started with, without the places of this machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return " ".join([f"python -m benchmarks.{Path(sys.argv[0]).stem}", *words])


def driver_version() -> str | None:
    """Return the version of the GPU's driver, where something tells it."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # pynvml missing, or no NVML behind it: the field stays empty
        return None


def one_line(row: Row) -> str:
    """Return what a person following the run wants to see of one row."""
    kind = " (deterministic)" if row["deterministic"] else ""
    door = f" through the {row['door']}" if "door" in row else ""
    head = f"{row['workload']:15} {row['allocator']:12}{door}{kind}"
    if "error" in row:
        return f"{head} {row['error']}"
    card: dict[str, Any] = row["card"] or {"peak_bytes": 0, "polls_per_second": 0, "source": "none"}
    times = sorted(row["step_ms"])
    return (
        f"{head} live {row['live_peak_bytes'] >> 20:7,} MiB, card {card['peak_bytes'] >> 20:7,} MiB"
        f" ({card['source']}, {card['polls_per_second']:.0f} Hz), "
        f"step {times[len(times) // 2]:.1f} ms, "
        f"run {row['run_s']:.1f} s after {row['startup_s']:.1f} s"
    )


def names(text: str) -> list[str]:
    """Split a comma-separated argument."""
    return [name for name in text.split(",") if name]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser, which benchmarks/run.py shares."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--workloads", type=names, default=list(MAIN_WORKLOADS))
    parser.add_argument("--allocators", type=names, default=list(ALLOCATORS))
    parser.add_argument("--rounds", type=int, default=4, help="at most")
    parser.add_argument("--seconds", type=float, default=480.0, help="for all runs together")
    parser.add_argument("--steps", type=int, help="instead of each workload's own number")
    parser.add_argument("--loss-steps", type=int, default=10, help="0: do not compare losses")
    parser.add_argument("--out", type=Path, help="file, instead of benchmarks/results/DATE-GPU")
    return parser


def compare(arguments: argparse.Namespace) -> Path | None:
    """Run everything; returns the results file, None if no run succeeded."""
    for workload in list(arguments.workloads):
        if missing := WORKLOADS[workload].missing:
            print(f"{workload}: left out, needs {', '.join(missing)}", flush=True)
            arguments.workloads.remove(workload)
    comparison = Comparison(arguments)
    comparison.run()
    for failure in failures(summarise(comparison.rows)):
        print(f"not met: {failure}", flush=True)
    return comparison.path if comparison.path and comparison.path.exists() else None


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, parents=[make_parser()])
    path = compare(parser.parse_args())
    if path is None:
        sys.exit("compare_gpu: no run succeeded")
    print(f"results: {path}")


if __name__ == "__main__":
    main()
