"""The model of PyTorch's native policy gives what PyTorch reserved, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpumem_alloc.replay import SettingsError, parse_allocator, replay
from gpumem_alloc.trace import Action, Trace, read_trace
from tests.patterns import MIB, PATTERNS, Allocate, Free, Operation, rmm_log
from tests.recorded import BUNDLED_NAMES, PEAKS_MIB, trace_path
from tests.snapshots import block, entry, freed, segment, snapshot, write

NAMES = [
    name if name in BUNDLED_NAMES else pytest.param(name, marks=pytest.mark.traces)
    for name in PEAKS_MIB
]
# What PyTorch's default policy reserves for the patterns, MiB.
PATTERN_PEAKS_MIB = {
    "rocm6333": 28150,
    "vllm56457": 31710,
    "vllm52950": 32768,
    "pt35901": 22208,
    "pt123548": 24530,
    "pin_small": 1540,
    "big_small_big": 8192,
    "kvcat": 2004,
    "varlen": 22188,
    "growlen": 95136,
    "gnn": 23008,
    "optstep": 5600,
    "ckpt": 105682,
    "comb2": 34816,
}


def results(trace: Trace, *allocators: str, **settings: Any) -> list[dict[str, Any]]:
    report = replay(trace, allocators, **settings)
    found: list[dict[str, Any]] = report["results"]
    return found


def pattern(tmp_path: Path, operations: Any) -> Trace:
    path = tmp_path / "pattern.csv"
    path.write_text(rmm_log(operations))
    return read_trace(path)


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_peak_is_met_to_the_byte(name: str) -> None:
    trace = read_trace(trace_path(name))
    is_segment = trace.events["action"] == Action.SEGMENT_ALLOC
    recorded = int(trace.events["bytes"][is_segment].sum()) + 2 * MIB  # one was there before
    assert not (trace.events["action"] == Action.SEGMENT_FREE).any()
    assert recorded == PEAKS_MIB[name][1] * MIB
    (native,) = results(trace, "native")
    assert native["peak_reserved_bytes"] == recorded
    assert native["driver_calls"]["malloc"] == int(is_segment.sum())


@pytest.mark.parametrize("name", NAMES)
def test_expandable_segments_come_within_half_a_percent(name: str) -> None:
    (expandable,) = results(read_trace(trace_path(name)), "native-expandable")
    measured = PEAKS_MIB[name][2] * MIB
    assert abs(expandable["peak_reserved_bytes"] - measured) <= 0.005 * measured


@pytest.mark.parametrize("name", PATTERN_PEAKS_MIB)
def test_the_patterns_reserve_what_was_reported(tmp_path: Path, name: str) -> None:
    (native,) = results(pattern(tmp_path, PATTERNS[name]()), "native")
    assert native["peak_reserved_bytes"] == PATTERN_PEAKS_MIB[name] * MIB


@pytest.mark.parametrize(
    ("divisions", "expected_mib"),
    [("8", 576), ("4", 640), ("2", 768), ("0", 514), ("1", 514), ("[256:1,512:8,>:2]", 576)],
)
def test_roundup_power2_divisions(tmp_path: Path, divisions: str, expected_mib: int) -> None:
    trace = pattern(tmp_path, [Allocate("a", 514 * MIB)])
    (native,) = results(trace, f"native:roundup_power2_divisions={divisions}")
    assert native["peak_reserved_bytes"] == expected_mib * MIB


def test_max_split_size_keeps_large_blocks_whole(tmp_path: Path) -> None:
    operations: list[Operation] = [Allocate("a", 100 * MIB), Free("a"), Allocate("b", 50 * MIB)]
    trace = pattern(tmp_path, operations)
    plain, unsplit, rounded = results(
        trace,
        "native",
        "native:max_split_size_mb=40",
        "native:max_split_size_mb=40;max_non_split_rounding_mb=60",
    )
    assert plain["peak_reserved_bytes"] == 100 * MIB
    assert unsplit["peak_reserved_bytes"] == 150 * MIB
    assert rounded["peak_reserved_bytes"] == 100 * MIB


def test_large_segment_size(tmp_path: Path) -> None:
    trace = pattern(tmp_path, [Allocate("a", 2 * MIB)])
    native, larger = results(trace, "native", "native:large_segment_size_mb=64")
    assert native["peak_reserved_bytes"] == 20 * MIB
    assert larger["peak_reserved_bytes"] == 64 * MIB


def test_at_the_limit_idle_segments_are_given_back_and_it_tries_again(tmp_path: Path) -> None:
    operations: list[Operation] = [
        Allocate("a", 100 * MIB),
        Free("a"),
        Allocate("b", 120 * MIB),
        Allocate("c", 60 * MIB),
    ]
    (native,) = results(pattern(tmp_path, operations), "native", limit_bytes=160 * MIB)
    assert native["alloc_retries"] == 2
    assert native["driver_calls"]["free"] == 1
    assert native["oom"] == {
        "event": 3,
        "requested_bytes": 60 * MIB,
        "reserved_bytes": 120 * MIB,
        "live_bytes": 120 * MIB,
    }


def test_garbage_collection_frees_old_segments_above_the_threshold(tmp_path: Path) -> None:
    operations: list[Operation] = [
        Allocate("a", 100 * MIB),
        Free("a"),
        Allocate("b", 150 * MIB),
        Free("b"),
        Allocate("c", 200 * MIB),
    ]
    trace = pattern(tmp_path, operations)
    collected, plain = results(
        trace, "native:garbage_collection_threshold=0.2", "native", limit_bytes=1000 * MIB
    )
    assert plain["driver_calls"]["free"] == 0
    assert collected["driver_calls"]["free"] == 1  # the older one suffices
    assert collected["end_reserved_bytes"] == 350 * MIB


def test_expandable_pages_are_unmapped_only_when_memory_runs_out(tmp_path: Path) -> None:
    operations: list[Operation] = [
        Allocate("a", 60 * MIB, 1),
        Free("a"),
        Allocate("b", 60 * MIB, 2),
    ]
    trace = pattern(tmp_path, operations)
    (free,) = results(trace, "native-expandable")
    assert free["peak_reserved_bytes"] == 120 * MIB
    (limited,) = results(trace, "native-expandable", limit_bytes=80 * MIB)
    assert limited["oom"] is None
    assert limited["peak_reserved_bytes"] == 60 * MIB
    assert limited["alloc_retries"] == 1
    assert limited["driver_calls"]["unmap"] == 3
    assert limited["driver_calls"]["synchronize"] == 1


def test_a_pending_block_is_waited_for_at_the_limit(tmp_path: Path) -> None:
    entries = [
        entry("alloc", 0, 100 * MIB),
        entry("free_requested", 0, 100 * MIB),
        entry("alloc", 200 * MIB, 100 * MIB),
        entry("free_completed", 0, 100 * MIB),
    ]
    trace = read_trace(write(tmp_path / "run.pickle", snapshot(entries)))
    native, limited = (
        results(trace, "native")[0],
        results(trace, "native", limit_bytes=100 * MIB)[0],
    )
    assert native["peak_reserved_bytes"] == 200 * MIB
    assert native["driver_calls"]["synchronize"] == 0
    assert limited["peak_reserved_bytes"] == 100 * MIB
    assert limited["driver_calls"]["synchronize"] == 1
    assert limited["oom"] is None


def test_a_start_state_is_taken_over_where_it_lay(tmp_path: Path) -> None:
    large = 40 * MIB
    now = [
        segment(
            0,
            large,
            [
                block(0, 10 * MIB, "inactive"),
                block(10 * MIB, 10 * MIB),
                block(20 * MIB, 20 * MIB, "inactive"),
            ],
        )
    ]
    entries = [entry("alloc", 20 * MIB, 15 * MIB), *freed(20 * MIB, 15 * MIB)]
    trace = read_trace(write(tmp_path / "run.pickle", snapshot(entries, now)))
    (native,) = results(trace, "native")
    assert native["peak_reserved_bytes"] == large
    assert native["end_live_bytes"] == 10 * MIB
    assert native["driver_calls"]["malloc"] == 0


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("natve", "nearest is 'native'"),
        ("native:max_split_size=64", "did you mean 'max_split_size_mb'"),
        ("native:max_split_size_mb=19", "at least 20"),
        ("native:max_split_size_mb=x", "bad value 'x'"),
        ("native:garbage_collection_threshold=1", "between 0 and 1"),
        ("native:roundup_power2_divisions=3", "powers of two"),
        ("native:large_segment_size_mb=10", "at least 11"),
        ("native:max_split_size_mb", "not of the form key=value"),
        ("native:max_split_size_mb=20;max_split_size_mb=21", "given twice"),
        ("paged:max_chunk=3", "max_chunk_mb"),
        ("paged:strategy=split", "strategy"),
        ("paged:max_chunk_mb=0", "max_chunk_mb"),
    ],
)
def test_a_bad_allocator_is_explained_in_one_line(spec: str, reason: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_allocator(spec)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
