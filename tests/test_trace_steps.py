"""Events become steps: which block a free means, what is live when, and what is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumem_alloc.trace import Action, Trace, TraceError, make_steps, read_trace
from gpumem_alloc.trace.events import RECORD, no_records
from gpumem_alloc.trace.steps import StepKind
from tests.recorded import PEAKS_MIB, trace_path
from tests.snapshots import Entry, block, entry, freed, segment, snapshot, write

A, F, L, C = StepKind.ALLOCATE, StepKind.FREE, StepKind.FREE_LATER, StepKind.COMPLETE


def trace_of(tmp_path: Path, entries: list[Entry], segments: list[Entry] | None = None) -> Trace:
    return read_trace(write(tmp_path / "run.pickle", snapshot(entries, segments)))


def kinds_and_blocks(trace: Trace) -> list[tuple[int, int]]:
    steps = make_steps(trace).steps
    return [
        (int(kind), int(number)) for kind, number in zip(steps["kind"], steps["block"], strict=True)
    ]


def test_an_address_that_is_used_again_means_another_block(tmp_path: Path) -> None:
    entries = [
        entry("alloc", 0, 100),
        *freed(0, 100),
        entry("segment_alloc", 0, 2 << 20),
        entry("alloc", 0, 600),
        *freed(0, 600),
    ]
    trace = trace_of(tmp_path, entries)
    assert kinds_and_blocks(trace) == [(A, 0), (F, 0), (A, 1), (F, 1)]
    steps = make_steps(trace)
    assert steps.steps["event"].tolist() == [0, 1, 4, 5]
    assert steps.steps["bytes"].tolist() == [100, 0, 600, 0]
    assert (steps.event_count, steps.peak_live_bytes) == (7, 1024)


def test_a_completion_that_comes_later_is_a_step_of_its_own(tmp_path: Path) -> None:
    entries = [
        entry("alloc", 0, 100),
        entry("free_requested", 0, 100),
        entry("alloc", 512, 100),
        entry("free_completed", 0, 100),
        entry("free_requested", 512, 100),
    ]
    trace = trace_of(tmp_path, entries)
    assert kinds_and_blocks(trace) == [(A, 0), (L, 0), (A, 1), (C, 0), (L, 1)]
    assert make_steps(trace).peak_live_bytes == 512


def test_a_free_of_what_is_not_known_is_skipped_and_counted_once(tmp_path: Path) -> None:
    entries = [*freed(0, 100), *freed(512, 100), entry("alloc", 0, 1), *freed(0, 1), *freed(0, 1)]
    trace = trace_of(tmp_path, entries)
    assert kinds_and_blocks(trace) == [(A, 0), (F, 0)]
    assert make_steps(trace).skipped_frees == 3


def test_a_lost_free_is_made_up_for(tmp_path: Path) -> None:
    entries = [
        entry("alloc", 0, 100),
        entry("alloc", 0, 200),
        entry("free_requested", 0, 200),
        entry("alloc", 0, 300),
    ]
    trace = trace_of(tmp_path, entries)
    assert kinds_and_blocks(trace) == [(A, 0), (F, 0), (A, 1), (L, 1), (C, 1), (A, 2)]
    assert make_steps(trace).lost_frees == 1
    assert make_steps(trace).peak_live_bytes == 512


def test_times_start_at_0_and_never_go_back(tmp_path: Path) -> None:
    entries = [entry("alloc", n * 512, 1, time_us=time) for n, time in enumerate((5, 9, 7, 10))]
    steps = make_steps(trace_of(tmp_path, entries))
    assert steps.steps["time_ns"].tolist() == [0, 4000, 4000, 5000]
    assert (steps.duration_ns, steps.second_half_ns) == (5000, 1000)


def test_without_times_a_thousand_events_are_the_default_lag() -> None:
    events = no_records(2)
    events["address"] = (512, 1024)
    steps = make_steps(Trace("log", events, has_times=False)).steps
    assert steps["time_ns"].tolist() == [0, 20_000]


def test_a_null_pointer_is_no_block() -> None:
    assert len(make_steps(Trace("log", no_records(3), has_times=False)).steps) == 0


def test_too_many_pools_are_refused() -> None:
    events = no_records(1 << 16)
    events["address"] = 512
    events["pool_second"] = np.arange(1, len(events) + 1)
    with pytest.raises(TraceError, match="65537 pools"):
        make_steps(Trace("log", events, has_times=False))


SMALL = 2 << 20


def test_the_start_state_is_rebuilt_by_running_backwards(tmp_path: Path) -> None:
    entries = [
        entry("free_requested", 0, 1000),  # live at the start: freed at once
        entry("free_completed", 0, 1000),
        entry("free_completed", 1024, 512),  # pending at the start
        entry("alloc", 0, 700),
        entry("segment_alloc", 64 << 20, 20 << 20),
        entry("alloc", 64 << 20, 20 << 20),
        *freed(1 << 30, 512),  # nobody knows this one
    ]
    now = [
        segment(
            0,
            SMALL,
            [
                block(0, 1024),
                block(1024, 512, "inactive"),
                block(1536, 512),  # untouched: live all the time
                block(2048, 512, "active_pending_free"),  # untouched: pending all the time
                block(2560, SMALL - 2560, "inactive"),
            ],
        ),
        segment(64 << 20, 20 << 20, [block(64 << 20, 20 << 20)]),
    ]
    trace = trace_of(tmp_path, entries, now)
    start = trace.start
    assert sorted(
        zip(start["action"].tolist(), (start["address"] & 0xFFFFFF).tolist(), strict=True)
    ) == [
        (Action.ALLOC, 0),
        (Action.ALLOC, 1536),
        (Action.FREE_REQUESTED, 1024),
        (Action.FREE_REQUESTED, 2048),
        (Action.SEGMENT_ALLOC, 0),
    ]
    steps = make_steps(trace)
    assert steps.skipped_frees == 1
    assert steps.start_segments[:, 1].tolist() == [SMALL]
    assert sorted(steps.start_blocks[:, 2].tolist()) == [512, 1000]
    # Live at once: 1000 and 512 rounded; then 700 for the 1000, and 20 MiB.
    assert steps.peak_live_bytes == 1024 + 512 + (20 << 20)


def cut(entries: list[Entry], at: int) -> tuple[list[Entry], int]:
    """The events from `at` on, and how many bytes are live there."""
    live: dict[int, int] = {}
    for event in entries[:at]:
        if event["action"] == "alloc":
            live[event["addr"]] = -(-event["size"] // 512) * 512
        elif event["action"] == "free_requested":
            del live[event["addr"]]
    return entries[at:], sum(live.values())


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_real_trace_cut_in_the_middle_starts_with_what_was_live(
    tmp_path: Path, share: float
) -> None:
    import gzip
    import pickle

    content: Any = pickle.loads(gzip.decompress(trace_path("gnn").read_bytes()))
    entries = content["device_traces"][0]
    first = next(
        i for i in range(int(len(entries) * share), len(entries)) if entries[i]["action"] == "alloc"
    )
    rest, live_bytes = cut(entries, first)
    live_now = {e["addr"]: e["size"] for e in entries if e["action"] == "alloc"}
    for event in entries:
        if event["action"] == "alloc":
            live_now[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            live_now.pop(event["addr"], None)
    # One segment around everything; its blocks are what is live at the end.
    low = min(live_now | {e["addr"]: 0 for e in entries if "addr" in e}) // SMALL * SMALL
    high = max(e["addr"] + e["size"] for e in entries)
    blocks = [
        {"address": address, "size": size, "requested_size": size, "state": "active_allocated"}
        for address, size in sorted(live_now.items())
    ]
    around = {"device": 0, "address": low, "total_size": high - low, "stream": 0, "blocks": blocks}
    steps = make_steps(read_trace(write(tmp_path / "cut.pickle", snapshot(rest, [around]))))
    at_start = steps.steps[steps.steps["event"] < 0]
    assert int(((at_start["bytes"] + 511) // 512 * 512).sum()) == live_bytes > 0
    assert steps.skipped_frees == 0


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("gnn", "prefetch_train") else pytest.param(name, marks=pytest.mark.traces)
        for name in PEAKS_MIB
    ],
)
def test_the_peak_of_live_bytes_is_the_recorded_one(name: str) -> None:
    steps = make_steps(read_trace(trace_path(name)))
    assert steps.peak_live_bytes >> 20 == PEAKS_MIB[name][0]
    assert steps.skipped_frees == steps.lost_frees == 0


def plain_model(actions: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
    """The same matching with a dict, event by event."""
    state: dict[int, tuple[str, int]] = {}
    steps: list[tuple[int, int]] = []
    count = skipped = 0
    for action, address in actions:
        what, number = state.get(address, ("", -1))
        if action == Action.ALLOC:
            if what == "live":
                steps.append((F, number))
            elif what == "pending":
                steps.append((C, number))
            state[address] = ("live", count)
            steps.append((A, count))
            count += 1
        elif action == Action.FREE:
            if what == "live":
                steps.append((F, number))
                state[address] = ("free", number)
            else:
                skipped += 1
        elif what == "live":
            steps.append((L, number))
            state[address] = ("pending", number)
        else:
            skipped += 1
    return steps, skipped


@given(
    st.lists(
        st.tuples(st.sampled_from([Action.ALLOC, Action.FREE]), st.integers(1, 4)), max_size=60
    )
)
def test_matching_by_sorting_equals_matching_event_by_event(actions: list[tuple[int, int]]) -> None:
    events = np.zeros(len(actions), dtype=RECORD)
    events["action"] = [action for action, _ in actions]
    events["address"] = [address * 512 for _, address in actions]
    steps = make_steps(Trace("log", events, has_times=False))
    expected, skipped = plain_model(actions)
    renumber: dict[int, int] = {}
    found = []
    for kind, number in zip(*(steps.steps[c].tolist() for c in ("kind", "block")), strict=True):
        found.append((kind, renumber.setdefault(number, len(renumber))))
    assert found == expected
    assert steps.skipped_frees == skipped
