"""What one process of the benchmark is asked to do, and the row that comes back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

Row = dict[str, Any]
"""The fields of a Job, and what was measured; or `error` (one line) and `out_of_memory`.

door                  "bridge" or "stock"; only in rows of ours
startup_s             from GO until CUDA serves its first tensor
run_s                 the steps after the first, which makes the model
step_ms, losses       one entry per step; a loss is exact text (hexadecimal), "" where there is none
live_peak_bytes       bytes of blocks in use, as the allocator counts them
requested_peak_bytes  the same before rounding
reserved_peak_bytes   bytes taken from the driver, as the allocator says
allocations, alloc_retries, ooms
card                  what the card said (card_memory.py), or null
driver                calls of the driver's memory functions (driver_calls.py), or null
counters              our own counters; only in rows of ours

A figure that the allocator does not tell is null, never 0.
"""


@dataclass(frozen=True)
class Job:
    """One workload under one allocator, in a process of its own."""

    workload: str
    allocator: str
    steps: int | None = None  # None: the workload's own number
    size: int | None = None  # runs the workload's `sized` at that size
    deterministic: bool = False  # kernels that add in a fixed order
    turns: bool = False  # the worker waits for GO before every step
    card: bool = True  # ask the card for its used memory
    driver_calls: bool = False  # count the driver's memory calls through CUPTI

    def row(self) -> Row:
        """Return the fields that every row of this job begins with."""
        return asdict(self)

    def to_json(self) -> str:
        """Return one line of text that from_json() reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Read what to_json() wrote. Raises ValueError or TypeError for anything else."""
        return cls(**json.loads(text))
