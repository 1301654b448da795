"""What existed before the first event of a snapshot that begins in the middle of a run.

A snapshot's `segments` show the state after the last event. Undoing the events from there backwards
leaves the state before the first one. Seen per address that comes to this: a block was live then
exactly when the first event at its address frees it, or when no event touches it and it is live
now. Where a block's memory is not known from `segments` (or from a segment given back during the
trace), nothing can be said; its free is skipped by the replay, and counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpumem_alloc.trace.events import AT_START, MAX_BYTES, Action, Records, no_records

SMALL_SEGMENT_BYTES = 2 << 20
SMALL_REQUEST_BYTES = 1 << 20
FREES = (Action.FREE_REQUESTED, Action.FREE, Action.FREE_COMPLETED)
LIVE_STATES = ("active_allocated",)
PENDING_STATES = ("active_pending_free", "active_awaiting_free")

Segment = dict[str, Any]
Row = tuple[int, int, int, int, tuple[int, int]]  # action, address, bytes, stream, pool


def start_state(events: Records, segments: list[Segment]) -> Records:
    """Return the start state as records marked AT_START.

    Raises KeyError, TypeError, ValueError, OverflowError or AttributeError for segments that are
    not as PyTorch writes them.
    """
    rows = _segments_before(events, segments) + _blocks_before(events, segments)
    start = no_records(len(rows))
    for index, (action, address, size, stream, pool) in enumerate(rows):
        if not 0 <= size < MAX_BYTES:
            raise ValueError("a size of 1 EiB or more")
        start[index] = (0, address, size, stream, *pool, 0, 0, action, AT_START)
    if len(events):
        start["device"] = events["device"][0]
    return start


def _segment_row(segment: Segment) -> Row:
    pool = tuple(segment.get("segment_pool_id", (0, 0)))
    first, second = pool
    return (
        int(Action.SEGMENT_ALLOC),
        segment["address"],
        segment["total_size"],
        segment["stream"],
        (first, second),
    )


def _event_row(event: np.void, action: Action) -> Row:
    pool = (int(event["pool_first"]), int(event["pool_second"]))
    return int(action), int(event["address"]), int(event["bytes"]), int(event["stream"]), pool


def _segments_before(events: Records, segments: list[Segment]) -> list[Row]:
    """Undo the segment events; expandable segments are left out, their ranges say nothing."""
    known = {
        segment["address"]: _segment_row(segment)
        for segment in segments
        if not segment.get("is_expandable", False)
    }
    is_change = np.isin(events["action"], (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE))
    for event in events[is_change][::-1]:
        if event["action"] == Action.SEGMENT_ALLOC:
            known.pop(int(event["address"]), None)
        else:
            known[int(event["address"])] = _event_row(event, Action.SEGMENT_ALLOC)
    implied = [] if segments else _implied_segments(events)
    return [known[address] for address in sorted(known)] + implied


def _implied_segments(events: Records) -> list[Row]:
    """Find small segments that only their blocks give away, in a trace without `segments`.

    A small block outside every segment of the trace lies in one that was there before: 2 MiB, at a
    multiple of 2 MiB. Nothing can be said of large ones, nor of expandable segments.
    """
    actions = events["action"]
    if not (actions == Action.SEGMENT_ALLOC).any() or (actions == Action.SEGMENT_MAP).any():
        return []
    allocs = events[(actions == Action.ALLOC) & (events["bytes"] <= SMALL_REQUEST_BYTES)]
    outside = allocs[~covered(allocs["address"], ranges_of(events, [], Action.SEGMENT_ALLOC))]
    base = outside["address"] // SMALL_SEGMENT_BYTES * SMALL_SEGMENT_BYTES
    _, first = np.unique(base, return_index=True)
    rows = []
    for index in first:
        event = outside[index].copy()
        event["address"] = base[index]
        event["bytes"] = SMALL_SEGMENT_BYTES
        rows.append(_event_row(event, Action.SEGMENT_ALLOC))
    return rows


def _blocks_before(events: Records, segments: list[Segment]) -> list[Row]:
    is_block = np.isin(events["action"], (Action.ALLOC, *FREES))
    block_events = events[is_block]
    touched, first = np.unique(block_events["address"], return_index=True)
    opening = block_events[first]
    freed = opening[np.isin(opening["action"], FREES)]
    known = ranges_of(events, segments, Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    freed = freed[covered(freed["address"], known)]
    rows = [
        _event_row(event, Action.FREE_REQUESTED)
        for event in freed[freed["action"] == Action.FREE_COMPLETED]
    ]
    live = [
        _event_row(event, Action.ALLOC) for event in freed[freed["action"] != Action.FREE_COMPLETED]
    ]
    untouched = _untouched_blocks(segments, touched)
    rows += [row for row in untouched if row[0] == Action.FREE_REQUESTED]
    return rows + live + [row for row in untouched if row[0] == Action.ALLOC]


def _untouched_blocks(segments: list[Segment], touched: npt.NDArray[np.uint64]) -> list[Row]:
    seen = set(touched.tolist())
    rows: list[Row] = []
    for segment in segments:
        _, address, _, stream, pool = _segment_row(segment)
        for block in segment["blocks"]:
            address = block.get("address", address)  # old snapshots leave it out: blocks tile
            state = block["state"]
            if state in LIVE_STATES + PENDING_STATES and address not in seen:
                action = Action.ALLOC if state in LIVE_STATES else Action.FREE_REQUESTED
                size = block.get("requested_size", block["size"])
                rows.append((int(action), address, size, stream, pool))
            address += block["size"]
    return rows


def ranges_of(events: Records, segments: list[Segment], *actions: Action) -> npt.NDArray[np.uint64]:
    """Return the ranges that segments and events of these kinds name, as rows of start and end."""
    chosen = events[np.isin(events["action"], actions)]
    of_events = np.stack([chosen["address"], chosen["address"] + chosen["bytes"]], axis=1)
    of_segments = np.array(
        [(segment["address"], segment["address"] + segment["total_size"]) for segment in segments],
        dtype=np.uint64,
    ).reshape(-1, 2)
    return np.concatenate([of_events, of_segments])


def covered(
    addresses: npt.NDArray[np.uint64], ranges: npt.NDArray[np.uint64]
) -> npt.NDArray[np.bool_]:
    """Say for each address whether it lies in any of the ranges, which may overlap."""
    if len(ranges) == 0:
        return np.zeros(len(addresses), dtype=np.bool_)
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    before = np.searchsorted(ranges[:, 0], addresses, side="right")
    is_inside: npt.NDArray[np.bool_] = addresses < ends[np.maximum(before, 1) - 1]
    return is_inside & (before > 0)
