"""From events to the steps of a replay: addresses become block numbers, the rest is left out.

A block is live from its ALLOC to its FREE_REQUESTED and may be used again from its FREE_COMPLETED.
Where the two follow each other at once no other stream held the block, and one step is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from gpumem_alloc.trace.errors import TraceError
from gpumem_alloc.trace.events import Action, Records, Trace
from gpumem_alloc.trace.start_state import SMALL_SEGMENT_BYTES

UNIT_BYTES = 512
MAX_LIVE_BYTES = 1 << 50
EVENT_NS = 20_000
"""One event of a log without times: 1,000 of them make the default lag of 20 ms."""

STEP = np.dtype(
    [
        ("time_ns", "<u8"),
        ("bytes", "<u8"),
        ("stream", "<u8"),
        ("event", "<i8"),
        ("block", "<u4"),
        ("pool", "<u2"),
        ("kind", "u1"),
        ("padding", "u1"),
    ]
)
"""The layout of ReplayStep in csrc/replay/replay.h."""

Array = npt.NDArray[Any]


class StepKind(IntEnum):
    """What a step asks of an allocator; the numbers of csrc/replay/replay.h."""

    ALLOCATE = 0
    FREE = 1
    FREE_LATER = 2
    COMPLETE = 3


@dataclass(frozen=True)
class Steps:
    """A trace ready for replay.

    `segments` (address, bytes, stream, pool), `start_segments` (the same and 1 for a small one) and
    `start_blocks` (block, address, bytes) serve the model of the native policy alone.
    """

    steps: Array
    block_count: int
    event_count: int
    skipped_frees: int
    lost_frees: int
    """Blocks whose address was handed out again although no free was recorded."""
    peak_live_bytes: int
    duration_ns: int
    second_half_ns: int
    segments: Array
    start_segments: Array
    start_blocks: Array


def make_steps(trace: Trace) -> Steps:
    """Prepare a trace for replay; raises TraceError for more than 65,535 pools or 1 PiB live."""
    pools = _Pools(trace)
    times = _times(trace)
    blocks = trace.start[trace.start["action"] != Action.SEGMENT_ALLOC]
    rows = _matched(_rows(trace.events, blocks, times, pools))
    steps = _to_steps(rows)
    is_alloc = trace.events["action"] == Action.SEGMENT_ALLOC
    segments = trace.start[trace.start["action"] == Action.SEGMENT_ALLOC]
    start_segments = np.column_stack(
        [_segment_columns(segments, pools), segments["bytes"] <= SMALL_SEGMENT_BYTES]
    ).astype(np.uint64)
    at_start = (rows.event < 0) & (rows.kind == StepKind.ALLOCATE) & rows.is_live_at_start
    half = len(trace.events) // 2
    duration = int(times[-1]) if len(times) else 0
    return Steps(
        steps=steps,
        block_count=rows.block_count,
        event_count=len(trace.events),
        skipped_frees=rows.skipped_frees,
        lost_frees=rows.lost_frees,
        peak_live_bytes=_peak_live(trace.name, steps),
        duration_ns=duration,
        second_half_ns=duration - int(times[half]) if len(times) else 0,
        segments=_segment_columns(trace.events[is_alloc], pools),
        start_segments=start_segments,
        start_blocks=np.column_stack(
            [rows.block[at_start], rows.address[at_start], rows.bytes[at_start]]
        ).astype(np.uint64),
    )


class _Pools:
    """Dense numbers for PyTorch's pool ids; the default pool is 0."""

    def __init__(self, trace: Trace) -> None:
        keys = np.concatenate([self.keys(trace.events), self.keys(trace.start)])
        self.known = np.union1d(keys, np.zeros(1, dtype=np.uint64))
        if len(self.known) > 1 << 16:
            raise TraceError(trace.name, f"it names {len(self.known)} pools, more than 65,535")

    @staticmethod
    def keys(records: Records) -> Array:
        high: Array = records["pool_first"].astype(np.uint64) << np.uint64(32)
        keys: Array = high | records["pool_second"]
        return keys

    def numbers(self, records: Records) -> Array:
        numbers: Array = np.searchsorted(self.known, self.keys(records))
        return numbers


def _times(trace: Trace) -> Array:
    """Return nanoseconds since the first event, never going backwards."""
    times: Array = np.arange(len(trace.events), dtype=np.uint64) * np.uint64(EVENT_NS)
    if trace.has_times:
        times = np.maximum.accumulate(trace.events["time_ns"])
        times = np.subtract(times, times[:1])
    return times


def _segment_columns(records: Records, pools: _Pools) -> Array:
    return np.column_stack(
        [records["address"], records["bytes"], records["stream"], pools.numbers(records)]
    ).astype(np.uint64)


@dataclass
class _Rows:
    """Columns of block events, the start state first; `kind` is filled in by _matched()."""

    event: Array
    action: Array
    address: Array
    bytes: Array
    stream: Array
    pool: Array
    time_ns: Array
    kind: Array
    block: Array
    is_live_at_start: Array
    block_count: int = 0
    skipped_frees: int = 0
    lost_frees: int = 0

    def take(self, index: Array) -> None:
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(self, name, column[index])


def _rows(events: Records, start: Records, times: Array, pools: _Pools) -> _Rows:
    # A pending block of the start state is allocated and freed before the live ones come.
    pending = np.repeat(start[start["action"] == Action.FREE_REQUESTED], 2)
    pending["action"][::2] = Action.ALLOC
    live = start[start["action"] == Action.ALLOC]
    before = np.concatenate([pending, live])
    is_block = np.isin(
        events["action"],
        (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.FREE),
    )
    index = np.flatnonzero(is_block & (events["address"] != 0))
    records = np.concatenate([before, events[index]])
    count = len(records)
    is_live_at_start = np.zeros(count, dtype=np.bool_)
    is_live_at_start[len(pending) : len(before)] = True
    return _Rows(
        event=np.concatenate([np.full(len(before), -1, dtype=np.int64), index]),
        action=records["action"],
        address=records["address"],
        bytes=records["bytes"],
        stream=records["stream"],
        pool=pools.numbers(records),
        time_ns=np.concatenate([np.zeros(len(before), dtype=np.uint64), times[index]]),
        kind=np.zeros(count, dtype=np.uint8),
        block=np.zeros(count, dtype=np.int64),
        is_live_at_start=is_live_at_start,
    )


def _matched(rows: _Rows) -> _Rows:
    """Give each alloc a block number and each free the number of its block; drop what has none.

    Sorted by address and then by time, an event's predecessor is the one before it in the array.
    """
    count = len(rows.event)
    by_address = np.argsort(rows.address, kind="stable")
    action = rows.action[by_address]
    same = np.zeros(count, dtype=np.bool_)
    same[1:] = rows.address[by_address][1:] == rows.address[by_address][:-1]
    previous = np.where(same, np.roll(action, 1), 255)
    is_alloc = action == Action.ALLOC
    after_alloc = previous == Action.ALLOC

    # A request is good right after its alloc; a completion right after a good request.
    is_request = (action == Action.FREE_REQUESTED) | (action == Action.FREE)
    good_request = is_request & after_alloc
    after_request = same & np.roll(good_request & (action == Action.FREE_REQUESTED), 1)
    is_completion = action == Action.FREE_COMPLETED
    good_completion = is_completion & (after_request | after_alloc)
    rows.skipped_frees = int((is_request & ~after_alloc).sum() + (is_completion & ~same).sum())

    event = rows.event[by_address]
    next_event = np.roll(event, -1)
    at_once = (
        np.roll(good_completion & after_request, -1) & (next_event == event + 1) & (event >= 0)
    )
    at_once |= action == Action.FREE
    kind = np.full(count, 255, dtype=np.uint8)
    kind[is_alloc] = StepKind.ALLOCATE
    kind[good_request] = np.where(at_once, StepKind.FREE, StepKind.FREE_LATER)[good_request]
    kind[good_completion] = np.where(after_request, StepKind.COMPLETE, StepKind.FREE)[
        good_completion
    ]
    kind[good_completion & np.roll(good_request & at_once, 1)] = 255  # part of the step before

    block = np.cumsum(is_alloc) - 1
    rows.block_count = int(is_alloc.sum())
    rows.kind[by_address] = kind
    rows.block[by_address] = block
    _add_lost_frees(rows, by_address, kind, is_alloc & after_alloc, is_alloc & after_request)
    return rows


def _add_lost_frees(
    rows: _Rows, by_address: Array, kind: Array, unfreed: Array, uncompleted: Array
) -> None:
    """Free the block before, where an address is handed out again without that; then drop rows.

    `unfreed` and `uncompleted` mark such allocs, in the order of `by_address`.
    """
    rows.lost_frees = int(unfreed.sum())
    lost = by_address[unfreed | uncompleted]
    lost_kind = np.where(unfreed, StepKind.FREE, StepKind.COMPLETE)[unfreed | uncompleted]
    lost_block = rows.block[lost] - 1
    keep = np.flatnonzero(rows.kind != 255)
    order = np.argsort(np.concatenate([lost * 2, keep * 2 + 1]), kind="stable")
    rows.take(np.concatenate([lost, keep])[order])
    is_lost = order < len(lost)
    rows.kind[is_lost] = lost_kind[order[is_lost]]
    rows.block[is_lost] = lost_block[order[is_lost]]


def _to_steps(rows: _Rows) -> Array:
    steps = np.zeros(len(rows.event), dtype=STEP)
    for name in ("time_ns", "event", "block", "pool", "kind"):
        steps[name] = getattr(rows, name)
    is_alloc = rows.kind == StepKind.ALLOCATE
    steps["bytes"] = np.where(is_alloc, rows.bytes, 0)
    steps["stream"] = np.where(is_alloc, rows.stream, 0)
    return steps


def _peak_live(name: str, steps: Array) -> int:
    """Return the peak of live bytes, requests rounded up to 512; raises TraceError above 1 PiB."""
    is_alloc = steps["kind"] == StepKind.ALLOCATE
    size = np.zeros(int(steps["block"].max(initial=0)) + 1, dtype=np.int64)
    rounded = (steps["bytes"][is_alloc] + np.uint64(UNIT_BYTES - 1)) // np.uint64(UNIT_BYTES)
    size[steps["block"][is_alloc]] = rounded * np.uint64(UNIT_BYTES)
    sign = np.where(is_alloc, 1, np.where(steps["kind"] == StepKind.COMPLETE, 0, -1))
    change = sign * size[steps["block"]]
    if np.cumsum(change, dtype=np.float64).max(initial=0) > MAX_LIVE_BYTES:
        raise TraceError(name, "damaged: more than 1 PiB is live at once")
    return int(np.cumsum(change).max(initial=0))
