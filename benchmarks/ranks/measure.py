"""What `bench ranks` does: each program on all ranks under each allocator, in turns.

Each has processes of its own: what one program leaves behind would be another's start.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path

from ..allocators import find as find_allocator
from ..asked import UsageError, check_folder, check_new, command_line
from ..host import host_process
from ..report import ranks_table
from ..store import check_writable
from ..workers.environment import environment
from . import launch
from .program import Figures, find

PROGRAMS = ("ddp", "fsdp", "pipeline", "tensor_parallel")
ALLOCATORS = ("native", "expandable", "paged")
FAILED = 1
INSTALL = "Install a CUDA build of torch"


def visible_devices() -> int:
    """Return how many devices a process may use, without starting CUDA in this one.

    Raises UsageError where there is no torch, none for CUDA, or no device.
    """
    try:
        import torch
    except ImportError as error:
        raise nothing_measured(f"torch cannot be imported ({error})", INSTALL) from None
    if torch.version.cuda is None:
        raise nothing_measured(f"torch {torch.__version__} is a build without CUDA", INSTALL)
    devices = int(torch.cuda.device_count())
    if devices == 0:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        is_set = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES is {hidden!r})"
        raise nothing_measured(f"torch sees no GPU{is_set}", "Run it where nvidia-smi lists GPUs")
    return devices


def nothing_measured(why: str, action: str) -> UsageError:
    """Return the error of a machine where no rank could run."""
    return UsageError(
        f"nothing was measured: {why}.\n"
        "Every rank is a process of torch with a GPU of its own.\n"
        f"{action}; without a GPU, `bench` replays recorded runs."
    )


def check(programs: Sequence[str], allocators: Sequence[str], ranks: int | None) -> int:
    """Return the number of ranks. Raises UsageError for what cannot be."""
    try:
        for name in programs:
            find(name)
        for name in allocators:
            if find_allocator(name).wrapper:
                raise ValueError(f"{name} is a tool, and ranks are not started through one")
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
    resume: bool = False,
) -> int:
    """Measure, write the file after every start, and print the tables; returns the exit code.

    With `resume`, what `out` has is not measured again, save what failed; without, nothing may be
    there. Raises UsageError, or ResultsError where `out` cannot be written, before anything is
    measured.
    """
    count = check(programs, allocators, ranks)
    check_folder(out)
    check_writable(out)
    check_new(out, resume)
    machine = environment() | {"gpus": visible_devices()}
    rows = kept(out) if resume else []
    for number in range(rounds):
        order = allocators if number % 2 == 0 else [*allocators][::-1]
        for program, allocator in itertools.product(programs, order):
            if any(place(row) == (number, program, allocator, count) for row in rows):
                continue
            made = launch.run([program], allocator, count, steps=steps)
            rows += [row | {"round": number, "git_id": machine.get("git_id")} for row in made]
            host_process.write(rows, out, machine, command=command_line())
    print(json.dumps({"machine": machine, "rows": rows}) if as_json else text(rows))
    return FAILED if any("error" in row for row in rows) else 0


def place(row: Figures) -> tuple[int, str, str, int]:
    """Return what a row is one of: its round, program, allocator and how many ranks there were."""
    return row["round"], row["program"], row["allocator"], row["ranks"]


def kept(path: Path) -> list[Figures]:
    """Return the rows of starts without a failed rank. Raises UsageError for another file."""
    if not path.exists():
        return []
    try:
        rows: list[Figures] = json.loads(path.read_text())["rows"]
        failed = {place(row) for row in rows if "error" in row}
        return [row for row in rows if place(row) not in failed]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is not a file of `bench ranks`: {error!r}.\nNothing was measured.\n"
            "Name another with --out, or leave out --resume."
        ) from None


def text(rows: Sequence[Figures]) -> str:
    """Return the tables, who is odd, and what failed."""
    failed = [
        f"{row['program']}, {row['allocator']}, rank {row['rank']}: {row['error']}"
        for row in rows
        if "error" in row
    ]
    odd = ranks_table.odd_ones(rows) or ["no rank is odd"]
    return "\n".join([ranks_table.render(rows), *odd, *failed])
