"""Files made to harm: nothing in them is executed, and none takes the process down."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumem_alloc import _C
from gpumem_alloc.trace import TraceError, make_steps, read_trace, write_trace
from gpumem_alloc.trace.pytorch import PlainUnpickler
from tests.patterns import PATTERNS, rmm_log
from tests.recorded import trace_path
from tests.snapshots import block, entry, freed, segment, snapshot


class Calls:
    """A pickle of this calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def hostile_pickles(marker: Path) -> dict[str, bytes]:
    plain = snapshot([entry("alloc", 0, 1)])
    harm = Calls(os.system, f"touch {marker}")
    return {
        "as the whole": pickle.dumps(harm),
        "protocol 2": pickle.dumps(harm, protocol=2),
        "in the trace": pickle.dumps({**plain, "device_traces": [[harm]]}),
        "as a key": pickle.dumps({**plain, "more": {(1, 2): harm}}),
        "after plain data": pickle.dumps([plain, harm]),
        "exec": pickle.dumps(Calls(exec, f"open({str(marker)!r}, 'w')")),
        "old form": f"cos\nsystem\n(S'touch {marker}'\ntR.".encode(),
        "old form with protocol": b"\x80\x02" + f"cos\nsystem\n(S'touch {marker}'\ntR.".encode(),
        "inst": b"\x80\x02(" + f"S'touch {marker}'\nios\nsystem\n.".encode(),
        "persistent id": b"\x80\x02Pharm\n.",
        "extension": b"\x80\x02\x82\x01.",
        "a class": pickle.dumps(Path("x")),
        "a bare global": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    }


@pytest.mark.parametrize("name", hostile_pickles(Path("x")))
def test_a_pickle_that_calls_is_refused_and_calls_nothing(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "executed"
    data = hostile_pickles(marker)[name]
    path = tmp_path / "run.pickle"
    path.write_bytes(gzip.compress(data) if len(name) % 2 else data)
    run = subprocess.run(
        [sys.executable, "-m", "gpumem_alloc", "replay", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1, run.stderr
    assert str(path) in run.stderr
    assert not marker.exists()


def test_the_markers_of_these_tests_work(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    for data in (hostile_pickles(marker)["as the whole"], hostile_pickles(marker)["old form"]):
        pickle.loads(data)
        assert marker.exists()
        marker.unlink()


def test_the_unpickler_refuses_globals_by_itself() -> None:
    import io

    with pytest.raises(pickle.UnpicklingError, match="names posix"):
        PlainUnpickler(io.BytesIO(pickle.dumps(os.system))).load()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x04" + b"\x85" * 3 + b".", "stack runs empty"),
        (b"\x80\x04)" + b"\x85" * 100_000 + b".", "nested too deeply"),
        (b"\x80\x04Nr\xff\xff\xff\x7f.", "out of order"),
        (b"\x80\x04j\x00\x00\x00\x01.", "never stored"),
        (b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b".", "truncated"),
        (b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.", "truncated"),
        (b"\x80\x04\x8b" + struct.pack("<I", 1 << 20) + b"\0" * (1 << 20) + b".", "128 bits"),
        (b"\x80\x09N.", "protocol"),
        (b"\x80\x04N", "truncated"),
        (b"\x80\x04t.", "stack runs empty"),
        (b"\x80\x04(N0000.", "stack runs empty"),
    ],
)
def test_a_pickle_that_would_break_its_loader_is_refused(data: bytes, reason: str) -> None:
    assert reason in _C.check_pickle(data)


def test_plain_data_of_every_kind_passes() -> None:
    value = [{"a": 1, "b": (1 << 70, -5, 2.5, None, True, "y" * 300)}, [], {}, (), ("y",)]
    for protocol in (2, 3, 4, 5):
        assert _C.check_pickle(pickle.dumps([value, value], protocol=protocol)) == ""
    assert _C.check_pickle(pickle.dumps([b"x", b"y" * 300])) == ""


def test_a_gzip_bomb_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0" * (64 << 20)))
    with pytest.raises(TraceError, match="unfolds to more"):
        read_trace(path)


def seeds(folder: Path) -> list[bytes]:
    """Small valid files of each format."""
    now = [segment(0, 2 << 20, [block(0, 1024), block(1024, (2 << 20) - 1024, "inactive")])]
    entries = [
        {**entry("alloc", 2048, 512), "pool_id": (0, 1)},
        *freed(2048, 512),
        *freed(0, 1024),
    ]
    pickled = pickle.dumps(snapshot(entries, now))
    (folder / "seed.pickle").write_bytes(pickled)
    write_trace(read_trace(folder / "seed.pickle"), folder / "seed.trace")
    log = rmm_log(PATTERNS["rocm6333"]()).encode()
    clock = b"Thread,Time,Action,Pointer,Size,Stream\n1,12:34:56:789012,allocate,0x10,5,0\n"
    return [
        pickled,
        pickle.dumps(snapshot(entries, now), protocol=2),
        gzip.compress(pickled),
        (folder / "seed.trace").read_bytes(),
        log,
        clock,
    ]


Mutation = tuple[int, int, bytes]


def mutated(data: bytes, mutations: list[Mutation], length: int) -> bytes:
    for at, removed, inserted in mutations:
        at %= len(data) + 1
        data = data[:at] + inserted + data[at + removed :]
    return data[:length]


@given(
    seed=st.integers(0, 5),
    mutations=st.lists(
        st.tuples(st.integers(0, 1 << 16), st.integers(0, 4), st.binary(max_size=4)),
        min_size=1,
        max_size=6,
    ),
    length=st.integers(0, 1 << 16),
)
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path: Path, seed: int, mutations: list[Mutation], length: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(mutated(seeds(tmp_path)[seed], mutations, length))
    refusal = ""
    try:
        steps = make_steps(read_trace(path))
    except TraceError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
        assert path.name in refusal
        return
    replayed = _C.replay(
        steps=steps.steps,
        block_count=steps.block_count,
        event_count=steps.event_count,
        segments=steps.segments,
        start_segments=steps.start_segments,
        start_blocks=steps.start_blocks,
        allocator="native",
        options=[],
        limit_bytes=0,
        repeat=1,
        lag_ns=0,
    )
    assert replayed["peak_live_bytes"] <= replayed["peak_reserved_bytes"]


@given(data=st.binary(max_size=200))
def test_any_bytes_as_a_pickle_are_walked_to_an_end(data: bytes) -> None:
    assert isinstance(_C.check_pickle(b"\x80\x04" + data), str)


def test_a_real_trace_passes() -> None:
    assert _C.check_pickle(gzip.decompress(trace_path("gnn").read_bytes())) == ""
