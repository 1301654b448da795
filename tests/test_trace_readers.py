"""Each format is read as it is meant, and a file that is not one is named in one line."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

from gpumem_alloc import _C
from gpumem_alloc.trace import (
    ACTION_NAMES,
    RECORD,
    Action,
    TraceError,
    own,
    read_trace,
    write_trace,
)
from tests.recorded import BUNDLED_NAMES, trace_path
from tests.snapshots import BASE, entry, freed, snapshot, write

RMM_HEADER = "Thread,Time,Action,Pointer,Size,Stream\n"


def test_the_format_is_the_one_of_the_compiled_part() -> None:
    form = _C.trace_format()
    assert form["actions"] == ACTION_NAMES
    assert form["record_bytes"] == RECORD.itemsize
    assert form["header_bytes"] == own.HEADER.itemsize
    assert (form["magic"], form["version"]) == (own.MAGIC, own.VERSION)


@pytest.mark.parametrize("suffix", [".pickle", ".pkl", ".pickle.gz"])
def test_a_snapshot_keeps_every_event_in_order(tmp_path: Path, suffix: str) -> None:
    entries = [
        entry("segment_alloc", 0, 2 << 20),
        entry("alloc", 0, 700, stream=5, time_us=10),
        *freed(0, 700, 5, time_us=20),
        {"action": "oom", "device_free": 1, "size": 9, "stream": 0, "time_us": 0},
        entry("something_new", 0, 1),
    ]
    trace = read_trace(write(tmp_path / f"run{suffix}", snapshot(entries)))
    assert [Action(number).name for number in trace.events["action"]] == [
        "SEGMENT_ALLOC",
        "ALLOC",
        "FREE_REQUESTED",
        "FREE_COMPLETED",
        "OOM",
        "OTHER",
    ]
    assert trace.events["address"][1] == BASE
    assert trace.events["bytes"][1] == 700
    assert trace.events["stream"][1] == 5
    assert trace.events["time_ns"][2] - trace.events["time_ns"][1] == 10_000
    assert trace.has_times


def test_pool_ids_are_kept(tmp_path: Path) -> None:
    entries = [{**entry("alloc", 0, 512), "pool_id": (0, 3)}, entry("alloc", 512, 512)]
    trace = read_trace(write(tmp_path / "run.pickle", snapshot(entries)))
    assert trace.events["pool_second"].tolist() == [3, 0]


def test_the_first_device_with_events_is_taken_and_another_can_be_asked_for(tmp_path: Path) -> None:
    content = {
        "segments": [],
        "device_traces": [[], [entry("alloc", 0, 1)], [entry("alloc", 0, 2)]],
    }
    path = write(tmp_path / "run.pickle", content)
    assert read_trace(path).device == 1
    assert read_trace(path, device=2).events["bytes"].tolist() == [2]
    for device in (0, 3, -1):
        with pytest.raises(TraceError, match=f"no events of device {device}"):
            read_trace(path, device=device)


def test_an_rmm_log_with_clock_times_goes_on_past_midnight(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        RMM_HEADER
        + "7f1,23:59:59:500000,allocate,0x7f00,1000,0x5\n"
        + "7f1,23:59:59:750000,allocate failure,(nil),99999999,0\n"
        + "7f1,00:00:01:000000,free,0x7f00,1000,0x5\n"
    )
    trace = read_trace(path)
    assert trace.has_times
    assert np.diff(trace.events["time_ns"].astype(np.int64)).tolist() == [
        250_000_000,
        1_250_000_000,
    ]
    assert trace.events["action"].tolist() == [Action.ALLOC, Action.OOM, Action.FREE]
    assert trace.events["stream"].tolist() == [5, 0, 5]
    assert trace.events["address"].tolist() == [0x7F00, 0, 0x7F00]


def test_integer_times_of_an_rmm_log_only_number_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(RMM_HEADER + "1,100,allocate,0x10,1,0\n1,900,deallocate,0x10,1,0\n")
    trace = read_trace(path)
    assert not trace.has_times
    assert trace.events["time_ns"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "row",
    [
        "1,0,allocate,0x10,1",
        "1,0,grow,0x10,1,0",
        "1,0,allocate,0xzz,1,0",
        "1,0,allocate,0x10,-1,0",
        "1,0,allocate,0x10,1,99999999999999999999999",
        f"1,0,allocate,0x10,{1 << 60},0",
        "1,12:00,allocate,0x10,1,0",
    ],
)
def test_a_bad_row_of_an_rmm_log_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(RMM_HEADER + "1,0,allocate,0x20,1,0\n" + row + "\n")
    with pytest.raises(TraceError, match=r"row 3: cannot read '1,") as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", BUNDLED_NAMES)
def test_our_own_file_holds_the_same(tmp_path: Path, name: str) -> None:
    trace = read_trace(trace_path(name))
    write_trace(trace, tmp_path / "run.trace")
    again = read_trace(tmp_path / "run.trace")
    assert (again.events == trace.events).all()
    assert (again.start == trace.start).all()
    assert (again.has_times, again.device) == (trace.has_times, trace.device)


def own_file(path: Path) -> bytearray:
    write_trace(read_trace(trace_path("gnn")), path)
    return bytearray(path.read_bytes())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-1], "truncated"),
        (lambda data: data[:20], "truncated"),
        (lambda data: data + b"x", "damaged"),
        (lambda data: data[:8] + b"\x02" + data[9:], "newer version"),
        (lambda data: data[:12] + b"\x38" + data[13:], "records of 56 bytes"),
        (lambda data: data[:16] + b"\xff" * 8 + data[24:], "announced"),
        (lambda data: data[:-2] + b"\xff\x00", "an action"),
    ],
)
def test_a_damaged_file_of_ours_says_how(tmp_path: Path, change: object, reason: str) -> None:
    path = tmp_path / "run.trace"
    path.write_bytes(bytes(change(own_file(path))))  # type: ignore[operator]
    with pytest.raises(TraceError, match=reason):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"just text\n", "not an RMM log"),
        (RMM_HEADER.encode(), "no rows"),
        (b"\xff\xfe\x00junk", "neither"),
        (b"\xc3\x28 not utf-8", "neither"),
        (b"\x1f\x8bjunk", "gzip"),
        (gzip.compress(pickle.dumps({}), mtime=0)[:-9], "gzip"),
        (pickle.dumps([1, 2]), "not a memory snapshot"),
        (pickle.dumps({"device_traces": 3}), "not a memory snapshot"),
        (pickle.dumps({"device_traces": [[]]}), "no events of device 0"),
        (pickle.dumps(snapshot([entry("alloc", 0, 1)]))[:-3], "truncated"),
        (pickle.dumps({"device_traces": [[1]]}), "not a list of dicts"),
        (pickle.dumps(snapshot([{"action": "alloc"}])), "address or size"),
        (pickle.dumps(snapshot([{"addr": 1, "size": 1}])), "lacks 'action'"),
        (pickle.dumps(snapshot([entry("alloc", 0, -5)])), "damaged"),
        (pickle.dumps(snapshot([entry("alloc", 0, 1 << 60)])), "1 EiB"),
        (pickle.dumps(snapshot([{**entry("alloc", 0, 1), "size": "1"}])), "whole number"),
        (pickle.dumps(snapshot([entry("alloc", 0, 1)], [{"device": 0}])), "segment lacks a field"),
        (pickle.dumps(snapshot([entry("alloc", 0, 1)], [3])), "'segments'"),  # type: ignore[list-item]
    ],
)
def test_a_foreign_or_damaged_file_says_what_is_wrong(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=reason) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nothing")
    with pytest.raises(TraceError, match="directory"):
        read_trace(tmp_path)
