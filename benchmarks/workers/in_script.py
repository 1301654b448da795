"""Inside a user's program: puts the allocator in place, and writes down what happened.

Each process that imports torch leaves a file PID.json in a folder: that it was reached at once, and
at its end its optimizer steps and the allocator's figures.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

from ..allocators import put_in_place

MOST_STEPS = 20_000
FIGURES = {
    "live_peak_bytes": "allocated_bytes.all.peak",
    "requested_peak_bytes": "requested_bytes.all.peak",
    "reserved_peak_bytes": "reserved_bytes.all.peak",
    "allocations": "allocation.all.allocated",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}


class Record:
    """What is known of this process."""

    def __init__(self, folder: Path, allocator: str) -> None:
        self.process = os.getpid()
        self.path = folder / f"{self.process}.json"
        self.known: dict[str, Any] = {"allocator": allocator}
        self.step_ms: list[float] = []
        self.last = time.perf_counter()

    def note_step(self, *_: object) -> None:
        """Take the time since the step before; torch calls this after each optimizer step."""
        now = time.perf_counter()
        if len(self.step_ms) < MOST_STEPS:
            self.step_ms.append(round(1e3 * (now - self.last), 4))
        self.last = now

    def write(self, **more: Any) -> None:
        """Write the file, whole."""
        self.known |= more
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.known))
        beside.replace(self.path)

    def end(self, torch: Any) -> None:
        """Write the figures of a process that used CUDA; a forked child has none of its own."""
        if os.getpid() == self.process:
            self.write(step_ms=self.step_ms, figures=figures(torch), ended=True)


def attach(torch: Any, allocator: str, folder: Path) -> None:
    """Put the allocator in place and measure from here on. Raises what the allocator raises."""
    record = Record(folder, allocator)
    try:
        door = put_in_place(torch, allocator)
    except Exception as error:
        record.write(error=f"{type(error).__name__}: {error}")
        raise
    record.write(door=door, reached=True)
    # torch.optim has the name `optimizer` no more once it is imported
    optimizer: Any = importlib.import_module("torch.optim.optimizer")
    optimizer.register_optimizer_step_post_hook(record.note_step)
    atexit.register(record.end, torch)


def figures(torch: Any) -> dict[str, int]:
    """Return the allocator's own figures; none where CUDA was not used or nobody counts."""
    if not torch.cuda.is_initialized():
        return {}
    try:
        stats = torch.cuda.memory_stats()
    except RuntimeError:  # another allocator than torch's or ours: it has no statistics
        return {}
    return {name: stats[key] for name, key in FIGURES.items() if stats.get(key) is not None}
