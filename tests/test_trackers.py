"""Trackers of memory events, and other users of the history that only C++ can be.

Where PyTorch's allocator does the same, the test runs on it too. What ours promises of trackers is
Note [What a tracker may do] in csrc/torch/bridge/history_telling.h.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.host.compiled_loops import compile_loops
from tests.rig.machine import Machine

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("bridge")]

PROGRAM = """
import ctypes, os, signal, torch
signal.alarm(60)  # a thread that waits for itself would wait for ever
if {ours}:
    import gpumem_alloc
    gpumem_alloc.enable(door="bridge")
lib = ctypes.CDLL({library!r})
size = ctypes.c_size_t
lib.told_events.argtypes, lib.told_events.restype = [ctypes.c_void_p, size], size
lib.keep.argtypes, lib.came_of.restype = [size], ctypes.c_char_p
MIB, BIG = 1 << 20, 64 << 20
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT = 0, 1, 2, 5 if {ours} else 3
THROW, ALLOCATE, FREE, ASK, ALLOCATE_ALWAYS, WAIT_FOR_ANOTHER = range(6)

def empty(count):
    return torch.empty(count, dtype=torch.uint8, device="cuda")

def told():
    found = (ctypes.c_int64 * 3 * 1000)()
    events = [tuple(event) for event in found[:lib.told_events(found, 1000)]]
    return [(action, place, count) for action, place, count in events if action < 3]

def record():
    torch.cuda.memory._record_memory_history(context=None, clear_history=True)

def trace():
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    found = [(entry["action"], entry["size"]) for entry in entries]
    return [(name, count) for name, count in found if not name.startswith("segment")]

def caught(call):
    try:
        call()
    except Exception as error:
        return str(error)

def act_in(action, deed):
    lib.act_at(action, deed)
    came = caught(lambda: empty(BIG)), lib.came_of().decode()
    lib.act_at(-1, THROW)
    return came

empty(1)
"""

Start = Callable[..., None]
both = pytest.mark.parametrize("ours", [False, True], ids=["native", "bridge"])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trackers, compiled against torch's headers."""
    folder = tmp_path_factory.mktemp("interface")
    return compile_loops("trackers", folder, Path(__file__).parent / "interface")


@pytest.fixture
def start(machine: Machine, library: Path) -> Start:
    """Runs a program, on our allocator unless it is told otherwise."""

    def run(code: str, *, ours: bool = True, options: str = "") -> None:
        program = PROGRAM.format(ours=ours, library=str(library)) + code
        machine.run(program, env={"GPUMEM_ALLOC_CONF": options})

    return run


@both
def test_memory_at_a_place_is_noted_like_any_other(start: Start, ours: bool) -> None:
    start(
        """
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
    lib.allocate_at.argtypes, lib.allocate_at.restype = [size, size], ctypes.c_char_p
    place = empty(BIG).data_ptr()
    lib.attach_note()
    torch.cuda.memory._record_memory_history(context="all", stacks="python")
    error = lib.allocate_at(3 * MIB, place)
    assert error is None, error
    assert torch.cuda.memory._allocation_traceback(place)
    assert lib.allocate_at(3 * MIB, place) is not None  # it is taken, and nothing comes of it
    lib.free_placed()
    assert trace() == [(name, 3 * MIB) for name in ("alloc", "free_requested", "free_completed")]
    assert told()[0] == (ALLOC, place, 3 * MIB)
    assert torch.cuda.memory._snapshot()["device_traces"][0][0]["frames"]
""",
        ours=ours,
    )


@both
def test_a_tracker_may_call_the_allocator_when_told_of_an_allocation(
    start: Start, ours: bool
) -> None:
    start(
        """
lib.attach_note()
lib.attach_act()
lib.keep(5 * MIB)
told()
assert int(act_in(ALLOC, ASK)[1]) >= 5 * MIB
told()
assert act_in(ALLOC, ALLOCATE) == (None, "done")
steps = [ALLOC, FREE_REQUESTED, FREE_COMPLETED]
assert [(action, count) for action, _, count in told()] == [
    (ALLOC, BIG), *((step, 1000) for step in steps), *((step, BIG) for step in steps[1:])
]
assert act_in(ALLOC, FREE) == (None, "done")
assert act_in(FREE_REQUESTED, ALLOCATE) == (None, "done")
assert [action for action, _, _ in told()].count(FREE_COMPLETED) == 4
assert torch.cuda.memory_allocated() == 0
""",
        ours=ours,
    )


def test_a_tracker_that_is_told_of_a_segment_is_refused(start: Start) -> None:
    start(
        """
lib.attach_note()
lib.attach_act()
for deed in (ALLOCATE, ASK):
    error, came = act_in(SEGMENT, deed)
    assert error is None
    what, why, remedy, *_ = came.splitlines()
    assert "a tracker called the allocator while it was told of a segment" in what
    torch.cuda.empty_cache()
assert {count for _, _, count in told()} == {BIG}
"""
    )


def test_a_free_by_a_tracker_that_is_told_of_a_segment_comes_after_the_call(start: Start) -> None:
    start(
        """
lib.attach_note()
lib.attach_act()
lib.keep(5 * MIB)
told()
lib.act_at(SEGMENT, FREE)
tensor = empty(BIG)
assert lib.came_of() == b"done"
assert torch.cuda.memory_allocated() == BIG
assert [count for _, _, count in told()] == [BIG] + [5 * MIB] * 2
lib.keep(5 * MIB)
lib.act_at(SEGMENT + 1, FREE)
del tensor
torch.cuda.empty_cache()
assert lib.came_of() == b"done" and torch.cuda.memory_allocated() == 0
"""
    )


def test_the_same_where_the_call_is_a_free(start: Start) -> None:
    start(
        """
lib.attach_act()
lib.keep(5 * MIB)
tensor = empty(BIG)
lib.act_at(4, FREE)  # the end of a segment
del tensor
assert lib.came_of() == b"done" and torch.cuda.memory_allocated() == 0
""",
        options="strategy:direct",
    )


def test_what_a_tracker_throws_goes_to_the_caller_and_leaves_no_block(start: Start) -> None:
    start(
        """
lib.attach_note()
lib.attach_act()
record()
for action in (ALLOC, SEGMENT):
    error, _ = act_in(action, THROW)
    assert error == "a tracker's", error
    assert torch.cuda.memory_allocated() == 0
    torch.cuda.empty_cache()
names = [name for name, _ in trace()]
assert names == ["alloc", "free_requested", "free_completed"] * 2, names
assert [action for action, _, _ in told()] == [ALLOC, FREE_REQUESTED, FREE_COMPLETED] * 2
empty(BIG)
lib.act_at(SEGMENT + 1, THROW)
assert caught(torch.cuda.empty_cache) == "a tracker's"
"""
    )


def test_trackers_that_call_without_end_are_stopped(start: Start) -> None:
    start(
        """
lib.attach_act()
error, _ = act_in(ALLOC, ALLOCATE_ALWAYS)
assert "Let the tracker leave out what it causes itself" in error
assert torch.cuda.memory_allocated() == 0
"""
    )


def test_threads_do_not_wait_for_a_tracker_that_calls(start: Start) -> None:
    start(
        """
lib.attach_act()
assert act_in(ALLOC, WAIT_FOR_ANOTHER) == (None, "done")
"""
    )


def test_a_tracker_that_comes_while_recording_ends_is_told_of_segments(start: Start) -> None:
    start(
        """
lib.record(True)
tensor = empty(BIG)
lib.end_record()  # the end of the tensor's context attaches one
torch.cuda.empty_cache()
del tensor
tensor = empty(2 * BIG)
found = (ctypes.c_int64 * 3 * 1000)()
count = lib.told_events(found, 1000)
assert SEGMENT in [event[0] for event in found[:count]], [list(event) for event in found[:count]]
"""
    )


def test_a_forked_child_gathers_no_contexts(start: Start) -> None:
    start(
        """
lib.record(False)
tensors = [empty(1000), empty(BIG)]
assert lib.take_gathered() == 2
child = os.fork()
if child == 0:
    tensors.clear()
    os._exit(lib.take_gathered())
assert os.waitpid(child, 0)[1] == 0
tensors.clear()
assert lib.take_gathered() == 2
"""
    )
