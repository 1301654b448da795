"""What `bench ranks` does: each program on all ranks under each allocator, in turns.

Each has processes of its own: what one program leaves behind would be another's start.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from ..allocators import find as find_allocator
from ..asked import UsageError, command_line
from ..host import host_process
from ..report import ranks_table
from ..workers.environment import environment
from . import launch
from .program import Figures, find

PROGRAMS = ("ddp", "fsdp", "pipeline", "tensor_parallel")
ALLOCATORS = ("native", "expandable", "paged")
FAILED = 1


def visible_devices() -> int:
    """Return how many devices a process may use, without starting CUDA in this one."""
    import torch

    return int(torch.cuda.device_count())


def check(programs: Sequence[str], allocators: Sequence[str], ranks: int | None) -> int:
    """Return the number of ranks. Raises UsageError for what cannot be."""
    try:
        for name in programs:
            find(name)
        for name in allocators:
            find_allocator(name)
    except ValueError as error:
        raise UsageError(
            f"{error}.\nNothing was measured.\nName others, with commas between them."
        ) from None
    devices = visible_devices()
    count = ranks or devices
    if not 1 <= count <= devices:
        raise UsageError(
            f"{count} ranks need as many devices, and there are {devices}.\n"
            "Every rank has a device of its own.\n"
            "Ask for fewer with --ranks, or make more visible (CUDA_VISIBLE_DEVICES)."
        )
    return count


def bench(
    programs: Sequence[str],
    allocators: Sequence[str],
    ranks: int | None,
    rounds: int,
    steps: int | None,
    out: Path,
    as_json: bool,
) -> int:
    """Measure, write the file after every start, and print the tables; returns the exit code."""
    count = check(programs, allocators, ranks)
    machine = environment() | {"gpus": visible_devices()}
    rows: list[Figures] = []
    for number in range(rounds):
        order = allocators if number % 2 == 0 else [*allocators][::-1]
        for program, allocator in itertools.product(programs, order):
            made = launch.run([program], allocator, count, steps=steps)
            rows += [row | {"round": number} for row in made]
            host_process.write(rows, out, machine, command=command_line())
    print(json.dumps({"machine": machine, "rows": rows}) if as_json else text(rows))
    return FAILED if any("error" in row for row in rows) else 0


def text(rows: Sequence[Figures]) -> str:
    """Return the tables, who is odd, and what failed."""
    failed = [
        f"{row['program']}, {row['allocator']}, rank {row['rank']}: {row['error']}"
        for row in rows
        if "error" in row
    ]
    odd = ranks_table.odd_ones(rows) or ["no rank is odd"]
    return "\n".join([ranks_table.render(rows), *odd, *failed])
