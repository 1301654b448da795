"""The contexts of a history through the bridge: one for all events that have the same stack.

torch makes one list of frames for each context, so that events of one context share their list.
That each stack is the right one is in tests/behaviour/contexts.py.
"""

from __future__ import annotations

import pytest

from tests.rig.machine import Machine

pytestmark = pytest.mark.torch

PROGRAM = """
import torch, gpumem_alloc

gpumem_alloc.enable()

def record(**options):
    torch.cuda.memory._record_memory_history(context="all", **{"stacks": "python", **options})

def allocate(count):
    return [torch.empty(512, device="cuda") for _ in range(count)]

def elsewhere(count):
    return allocate(count)

def lists(action="alloc"):
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    return [entry["frames"] for entry in entries if entry["action"] == action]

def distinct(found):
    return len({id(frames) for frames in found})

torch.ones(1).cuda()
"""


def test_events_of_one_stack_have_one_context(bridged: Machine) -> None:
    bridged.run(
        PROGRAM
        + """
record()
for _ in range(3):
    allocate(5)
    elsewhere(5)
found = lists()
assert len(found) == 30
assert distinct(found) <= 3, distinct(found)  # the last one may come from another instruction
assert found[0] is found[10] and found[5] is found[15]
assert found[0] is not found[5]
assert distinct(lists("free_requested")) <= 4
"""
    )


def test_contexts_are_shared_again_after_many_that_were_not(bridged: Machine) -> None:
    bridged.run(
        PROGRAM
        + """
def deep(depth):
    return deep(depth - 1) if depth else allocate(1)

record()
for depth in range(60):
    deep(depth)
assert distinct(lists()) == 60
record(clear_history=True)
for _ in range(20):
    deep(7)
assert distinct(lists()) < 5
"""
    )


def test_contexts_with_cpp_frames_are_never_shared(bridged: Machine) -> None:
    bridged.run(
        PROGRAM
        + """
record()
allocate(20)
record(stacks="all", clear_history=True)
allocate(20)
found = lists()
assert distinct(found) == 20
assert any("at::" in frame["name"] for frame in found[0])
"""
    )


def test_no_code_is_kept_once_recording_ends(bridged: Machine) -> None:
    bridged.run(
        PROGRAM
        + """
import gc, weakref

def make():
    names = {"allocate": allocate}
    exec("def made(): allocate(3)", names)
    return names["made"]

record()
made = make()
made()
code = weakref.ref(made.__code__)
del made
gc.collect()
assert code() is not None
torch.cuda.memory._record_memory_history(None)
record()  # what torch let go of ends with the next context
allocate(1)
assert code() is None
"""
    )


def test_a_process_ends_quietly_with_contexts_kept(bridged: Machine) -> None:
    run = bridged.run(
        PROGRAM
        + """
import threading
record()
kept = allocate(5)
other = threading.Thread(target=lambda: kept.extend(elsewhere(5)))
other.start()
other.join()
assert torch.cuda.memory._snapshot()["device_traces"][0]
"""
    )
    assert (run.stdout, run.stderr) == ("", "")
