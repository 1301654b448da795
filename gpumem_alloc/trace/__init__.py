"""Recorded runs: reading them, and making them ready for replay.

`read_trace` accepts PyTorch's memory snapshots, RMM's logs and our own files; `write_trace` writes
our own. All of them raise `TraceError`, and nothing else, for a file that is not what it should be.
"""

from gpumem_alloc.trace.errors import TraceError
from gpumem_alloc.trace.events import ACTION_NAMES, RECORD, Action, Trace
from gpumem_alloc.trace.own import write_trace
from gpumem_alloc.trace.read import read_trace
from gpumem_alloc.trace.steps import STEP, Steps, make_steps

__all__ = [
    "ACTION_NAMES",
    "RECORD",
    "STEP",
    "Action",
    "Steps",
    "Trace",
    "TraceError",
    "make_steps",
    "read_trace",
    "write_trace",
]
