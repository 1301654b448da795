"""What a batch costs on its way from a DataLoader's worker: shared memory against by value.

    python -m benchmarks.host.worker_transport --out FILE

Two loaders with one worker each, one started inside gpumem_alloc.workers.no_sharing(), take turns
for every size. The worker stacks a batch of 8 pieces, as default_collate() does; the consumer adds
up all numbers. The ratio of a size is the median over the rounds of by value / shared. No GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..workers.environment import environment
from . import host_process

HERE = Path(__file__).resolve().parent
KIB = 1 << 10
SIZES = tuple(4**power * KIB for power in range(9))  # 1 KiB to 64 MiB
PIECES, NUMBER_BYTES = 8, 4
BATCHES_BYTES, MOST_BATCHES, LEAST_BATCHES = 256 << 20, 200, 8
WAYS = ("shared", "by_value")

Row = dict[str, Any]


def batch_count(size: int) -> int:
    """Return how many batches one epoch has: few of the large ones."""
    return min(MOST_BATCHES, max(LEAST_BATCHES, BATCHES_BYTES // size))


def loader(size: int, batches: int) -> Any:
    """Return a loader of batches of `size` bytes."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    pieces = torch.rand(PIECES, size // PIECES // NUMBER_BYTES)
    dataset = TensorDataset(pieces)
    order = list(range(PIECES)) * batches
    return DataLoader(
        dataset, PIECES, sampler=order, num_workers=1, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip


@contextlib.contextmanager
def loaders(size: int, batches: int) -> Iterator[dict[str, Any]]:
    """Start both workers and run one epoch of each, which is not timed."""
    from gpumem_alloc import workers

    both = {way: loader(size, batches) for way in WAYS}
    epoch_us(both["shared"])
    with workers.no_sharing():
        epoch_us(both["by_value"])
    yield both


def epoch_us(batches: Any) -> float:
    """Return the time for one batch of an epoch, from asking for it to having read it."""
    begin, count = time.perf_counter_ns(), 0
    for (batch,) in batches:
        batch.sum()
        count += 1
    return (time.perf_counter_ns() - begin) / 1e3 / count


def measure(rounds: int, sizes: list[int], keep: Callable[[list[Row]], None]) -> list[Row]:
    """Time both ways in alternating order; the rows so far are kept after every size."""
    rows: list[Row] = []
    for size in sizes:
        with loaders(size, batch_count(size)) as both:
            for index in range(rounds):
                for way in WAYS[:: -1 if index % 2 else 1]:
                    row = {"bytes": size, "way": way, "round": index}
                    rows.append(row | {"us": round(epoch_us(both[way]), 2)})
        print(render(summary(rows)[-1:]), flush=True)
        keep(rows)
    return rows


def summary(rows: list[Row]) -> list[Row]:
    """Return for each size the median times, and of the rounds' ratios median, least and most."""
    found = []
    for size in dict.fromkeys(row["bytes"] for row in rows):
        times = {
            way: [row["us"] for row in rows if (row["bytes"], row["way"]) == (size, way)]
            for way in WAYS
        }
        # Rows of a round stand side by side in each list.
        ratios = [mine / theirs for theirs, mine in zip(*times.values(), strict=True)]
        found.append(
            {"bytes": size}
            | {f"{way}_us": round(statistics.median(each), 1) for way, each in times.items()}
            | {"ratio": round(statistics.median(ratios), 3)}
            | {"ratio_range": [round(min(ratios), 3), round(max(ratios), 3)]}
        )
    return found


def loses_from(found: list[Row]) -> int | None:
    """Return the size from which by value is slower at every larger one; None if nowhere."""
    at = None
    for row in reversed(found):
        if row["ratio"] <= 1:
            break
        at = int(row["bytes"])
    return at


def text(size: int) -> str:
    """Return a size in the unit that makes it a whole number."""
    return f"{size // KIB // KIB} MiB" if size >= KIB * KIB else f"{size // KIB} KiB"


def render(found: list[Row]) -> str:
    """Return the rows of the table."""
    return "\n".join(
        f"| {text(row['bytes'])} | {row['shared_us']:,.0f} | {row['by_value_us']:,.0f} "
        f"| {row['ratio']:.2f} ({row['ratio_range'][0]:.2f}–{row['ratio_range'][1]:.2f}) |"
        for row in found
    )


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="bytes")
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "worker_transport.json")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)  # the workers have one each, too
    machine = environment() | {"load_average": os.getloadavg()[0]}  # of others, before it starts
    print("| a batch of | shared µs | by value µs | by value / shared |\n|---|---|---|---|")

    def keep(rows: list[Row]) -> None:
        found = summary(rows)
        more = {"summary": found, "loses_from_bytes": loses_from(found)}
        host_process.write(rows, arguments.out, machine, **more)

    at = loses_from(summary(measure(arguments.rounds, arguments.sizes, keep)))
    print(f"by value is slower {'nowhere' if at is None else f'from {text(at)}'}")
    print(f"results: {arguments.out}")


if __name__ == "__main__":
    main()
