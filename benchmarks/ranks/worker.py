"""One rank: runs programs under one allocator, and prints a line ROW and JSON after each.

It finds its place as torchrun gives it (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), so
that torchrun can start it too:

    torchrun --nproc-per-node 2 -m benchmarks.ranks.worker --allocator paged ddp fsdp
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import sys
import traceback
from typing import Any

from ..allocators import choose, put_in_place
from ..workers.card_memory import CardMemory
from ..workers.worker import make_deterministic, our_counters
from .program import Figures, Program, Rank, find, measured

CPU = "cpu"  # in place of an allocator's name: the programs are tried without a card
GROUP_SECONDS = 60


def start(torch: Any, allocator: str, backend: str) -> tuple[Any, str | None]:
    """Put the allocator in place and join the group; returns the device and the door."""
    door, local = None, int(os.environ["LOCAL_RANK"])
    if allocator == CPU:
        torch.set_num_threads(1)
        device = torch.device("cpu")
    else:
        door = put_in_place(torch, allocator)
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
    if backend != "none":
        limit = datetime.timedelta(seconds=GROUP_SECONDS)
        torch.distributed.init_process_group(
            backend, timeout=limit, **({"device_id": device} if backend == "nccl" else {})
        )
    make_deterministic(torch)
    return device, door


def run(torch: Any, program: Program, device: Any, steps: int | None) -> Figures:
    """Run a program and return what was measured."""
    rank = Rank(
        torch, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device,
        steps or program.steps,
    )  # fmt: skip
    torch.manual_seed(0)
    with CardMemory(device.index) if rank.is_cuda else contextlib.nullcontext() as card:
        if card is not None:
            card.begin()
        with measured(rank) as figures:
            rank.begin()
            program.run(rank)
            figures |= rank.addresses() if rank.is_cuda else {}
        clean(rank)
    figures |= {"step_ms": rank.ms[:-1], "losses": rank.losses, **rank.noted}
    seen = None if card is None else card.seen
    figures["card"] = None if seen is None else {**vars(seen), "timeline": None}
    if program.alone is not None:
        if rank.index == rank.count - 1:
            figures["one_device"] = alone(rank, program)
        rank.barrier()
    return figures


def alone(rank: Rank, program: Program) -> Figures:
    """Run the same on one device."""
    torch = rank.torch
    assert program.alone is not None
    by_itself = Rank(torch, 0, 1, rank.device, rank.steps)
    by_itself.barrier = lambda: None  # type: ignore[method-assign]
    with measured(by_itself) as figures:
        by_itself.begin()
        program.alone(by_itself)
        if by_itself.is_cuda:
            by_itself.addresses()
    clean(rank)
    return figures | {"step_ms": by_itself.ms[:-1], "losses": by_itself.losses}


def clean(rank: Rank) -> None:
    """Leave the device to the next program as this one found it."""
    rank.synchronize()
    gc.collect()
    if rank.is_cuda:
        rank.torch._C._cuda_clearCublasWorkspaces()
        rank.torch.cuda.empty_cache()


def say(row: Figures) -> None:
    """Print a row."""
    print("ROW " + json.dumps(row), flush=True)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--allocator", default="native")
    parser.add_argument("--backend", default="nccl", choices=("nccl", "gloo", "none"))
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    if arguments.allocator != CPU:
        choose(arguments.allocator, os.environ)
    import torch

    index = int(os.environ["RANK"])
    device, door = start(torch, arguments.allocator, arguments.backend)
    for name in arguments.programs:
        row: Figures = {"program": name, "allocator": arguments.allocator, "rank": index}
        row |= {"ranks": int(os.environ["WORLD_SIZE"]), "backend": arguments.backend}
        try:
            program = find(name)
            row |= {"is_alike": program.is_alike, **run(torch, program, device, arguments.steps)}
            if door is not None:
                row |= {"door": door, "counters": our_counters()}
        except Exception as error:
            traceback.print_exc()
            say(row | {"error": f"{type(error).__name__}: {str(error)[:600]}"})
            sys.stderr.flush()
            os._exit(1)  # the others wait for this one: the group cannot be taken down
        say(row)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
