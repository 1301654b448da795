"""Worker processes: what an epoch of a DataLoader leaves in shared memory."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpumem_alloc import workers
from gpumem_alloc.verify.outcome import Outcome, stopped, through

ITEMS, BATCH, NUMBERS = 8, 2, 1000
_kept: list[Any] = []  # in a worker, so that what its batches lie in can be seen


class Held:
    """What this process holds of shared memory, and its descriptors."""

    def __init__(self) -> None:
        lines = Path("/proc/self/maps").read_text().splitlines()
        shared = [line for line in lines if "/dev/shm/" in line and "/dev/shm/sem." not in line]
        self.mappings = len(shared)
        self.descriptors = len(list(Path("/proc/self/fd").iterdir()))


class Numbers:
    """A dataset whose items tell what their worker holds."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        import torch

        held = Held()
        return torch.full((NUMBERS,), float(index)), held.mappings, held.descriptors


def collate(items: list[Any]) -> Any:
    """Make a batch as usual, and keep it."""
    from torch.utils.data import default_collate

    _kept.append(default_collate(items))
    return _kept[-1]


def run(name: str, side: str, options: Mapping[str, object]) -> Outcome:
    """Run an epoch under the start method in `name`: with no_sharing() on our side."""
    import torch

    torch.set_num_threads(1)  # GNU's OpenMP does not survive a fork
    method = name.partition(": ")[2]
    if method == "forkserver":
        torch.multiprocessing.set_forkserver_preload(["torch.utils.data", __name__])
    with workers.no_sharing() if side == "ours" else contextlib.nullcontext():
        left = _epoch(method)
    if any(left.values()):
        parts = [f"{count} {what}" for what, count in left.items() if count]
        return through(f"left {', '.join(parts)}")
    return stopped("left nothing")


def _epoch(method: str) -> dict[str, int]:
    """Count what is there after an epoch and was not before, here and in the worker."""
    from multiprocessing import forkserver, resource_tracker

    from torch.utils.data import DataLoader

    resource_tracker.ensure_running()
    if method == "forkserver":
        forkserver.ensure_running()
    data: Any = Numbers()
    loader = DataLoader(
        data, BATCH, num_workers=1, multiprocessing_context=method, collate_fn=collate
    )
    names, before = set(_names()), Held()
    batches = list(loader)
    gc.collect()
    for thread in threading.enumerate():  # a queue's thread closes its pipe when it ends
        if thread.name == "QueueFeederThread":
            thread.join(10)
    after = Held()
    in_worker = [batch[2].tolist() for batch in batches]
    return {
        "files in /dev/shm": len(set(_names()) - names),
        "mappings": after.mappings - before.mappings,
        "descriptors": after.descriptors - before.descriptors,
        "mappings in the worker": max(int(batch[1].max()) for batch in batches),
        "descriptors in the worker": max(map(max, in_worker)) - in_worker[0][0],
    }


def _names() -> list[str]:
    """Files of torch in /dev/shm; of this process and its workers as far as can be told."""
    own = f"torch_{os.getpid()}_"
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(own)]
