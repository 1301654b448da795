"""Events as numpy records: the layout of csrc/base/trace_record.h, and what a reader returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[Any]
"""An array of the dtype `RECORD`."""


class Action(IntEnum):
    """What happened; the numbers are part of our file format."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    RECORD_STREAM = 7
    OOM = 8
    SNAPSHOT = 9
    EMPTY_CACHE = 10
    OTHER = 11
    FREE = 12
    """Requested and completed at once."""


ACTION_NAMES: dict[str, int] = {action.name.lower(): int(action) for action in Action}
"""PyTorch's names of the actions."""

RECORD = np.dtype(
    [
        ("time_ns", "<u8"),
        ("address", "<u8"),
        ("bytes", "<u8"),
        ("stream", "<u8"),
        ("pool_first", "<u4"),
        ("pool_second", "<u4"),
        ("thread", "<u4"),
        ("device", "<i2"),
        ("action", "u1"),
        ("flags", "u1"),
    ]
)
"""One event; times in nanoseconds from any origin, sizes in bytes."""

AT_START = 1
"""Bit of `flags`: part of the state before the first event, not an event."""

MAX_BYTES = 1 << 60
"""No request or segment is this large; a number above it means a damaged file."""


def no_records(count: int = 0) -> Records:
    """Return `count` records of zeros."""
    return np.zeros(count, dtype=RECORD)


@dataclass(frozen=True)
class Trace:
    """A recorded run of one device.

    `events` are in the file's order and include those that ask nothing of an allocator. `start`
    holds what existed before them, as records marked AT_START: segments (SEGMENT_ALLOC), blocks
    (ALLOC) and blocks that were freed but still in use (FREE_REQUESTED).
    """

    name: str
    events: Records
    has_times: bool
    device: int = 0
    start: Records = field(default_factory=no_records)
    notes: tuple[str, ...] = ()
    """What a user should know about this file, a sentence each."""
