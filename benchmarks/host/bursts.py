"""What an operation costs the host whose result is a small tensor, in bursts with pauses between.

    python -m benchmarks.host.bursts --rounds 2

A model that writes a token asks for hundreds of tensors within milliseconds and then for none for a
while. What an allocator leaves to a thread of its own is done in the pauses, as far as it has
memory ready for a burst. Each allocator runs in processes of its own, in alternating order; the
table shows the least of the rounds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..workers.environment import environment
from .bursts_worker import add_limits
from .host_process import Row, names, run_worker, write

HERE = Path(__file__).resolve().parent
ALLOCATORS = (
    "native", "no-caching", "isolated-tensor", "isolated-tensor:mapping_thread=off",
    "isolated-strict",
)  # fmt: skip
RUN_SECONDS = 90


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Run all rounds; the file is written after every run."""
    rows: list[Row] = []
    machine = environment()
    extra = ["--counts", ",".join(map(str, arguments.counts))]
    extra += ["--pause-ms", str(arguments.pause_ms)]
    for index in range(arguments.rounds):
        for allocator in arguments.allocators[:: -1 if index % 2 else 1]:
            row = run_worker("bursts_worker", allocator, HERE, extra, RUN_SECONDS)
            rows.append(row | {"round": index})
            write(rows, arguments.out, machine)
            if "error" in row:
                print(f"{allocator}: {row['error']}", file=sys.stderr)
    return rows


def least(rows: list[Row], allocator: str, count: int) -> float | None:
    """Return the least of the rounds' medians in microseconds; None without a good run."""
    good = [row["us"][str(count)] for row in rows if row["allocator"] == allocator and "us" in row]
    return min(good, default=None)


def table(rows: list[Row], counts: list[int]) -> Table:
    """Return a line for each allocator, microseconds of an operation by the burst's length."""
    made = Table("us an operation", *(f"{count:,}" for count in counts), box=None)
    for allocator in dict.fromkeys(row["allocator"] for row in rows):
        found = [least(rows, allocator, count) for count in counts]
        made.add_row(allocator, *("–" if us is None else f"{us:.1f}" for us in found))
    return made


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocators", type=names, default=list(ALLOCATORS))
    parser.add_argument("--rounds", type=int, default=1)
    add_limits(parser)
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "bursts.json")
    arguments = parser.parse_args()
    rows = measure(arguments)
    if all("error" in row for row in rows):
        sys.exit("bursts: no run succeeded; what failed is said above")
    Console().print(table(rows, arguments.counts))
    print(f"results: {arguments.out}")


if __name__ == "__main__":
    main()
