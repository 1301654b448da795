"""_record_memory_history(): what is recorded, with which stacks, and in which order."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import (
    MIB,
    actions,
    block_of,
    empty,
    filled,
    holds,
    raised,
    torch,
    trace,
    version,
)  # fmt: skip

_BLOCK = ("alloc", "free_requested", "free_completed")


def _record(*args: Any, **options: Any) -> None:
    torch.cuda.memory._record_memory_history(*args, **options)


def _frames(entry: dict[str, Any]) -> str:
    return json.dumps(entry.get("frames", []))


def allocates_here(size: int = 70_000) -> Any:
    return empty(size)


def frees_here(tensors: list[Any]) -> None:
    tensors.clear()


@behaviour()
def nothing_is_recorded_until_it_is_asked_for() -> None:
    assert not torch._C._cuda_isHistoryEnabled()
    empty(70_000)
    assert trace() == []
    _record(context=None)
    assert torch._C._cuda_isHistoryEnabled()
    empty(70_000)
    assert len(trace()) >= 3
    _record(None)
    assert not torch._C._cuda_isHistoryEnabled()
    assert trace() == []


@behaviour()
def entries_come_in_the_order_of_what_was_done() -> None:
    _record(context=None)
    tensor = empty(3 * MIB - 5)
    place = tensor.data_ptr()
    del tensor
    torch.cuda.empty_cache()
    entries = trace()
    names = [name for name, _ in actions(entries)]
    made = names.index("alloc")  # memory comes in one piece or in several
    assert set(names[:made]) <= {"segment_alloc", "segment_map"}
    assert actions(entries)[made : made + 3] == [(name, 3 * MIB - 5) for name in _BLOCK]
    assert set(names[made + 3 :]) <= {"segment_free", "segment_unmap"}
    gained = sum(entry["size"] for entry in entries[:made])
    assert gained == sum(entry["size"] for entry in entries[made + 3 :]) >= 3 * MIB
    assert [entry["addr"] for entry in entries[made : made + 3]] == [place] * 3
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times)
    assert times[0] > 1_600_000_000_000_000  # the clock of the calendar


@behaviour()
def an_entry_has_these_fields() -> None:
    _record(context="all", stacks="python")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = empty(3 * MIB)
    names = {
        "action",
        "addr",
        "size",
        "stream",
        "time_us",
        "frames",
        "compile_context",
        "user_metadata",
    }
    names |= {"pool_id"} if version() >= (2, 12) else set()
    for entry in trace():
        assert set(entry) == names, set(entry) ^ names
        assert entry["stream"] == side.cuda_stream
        assert (entry["compile_context"], entry["user_metadata"]) == ("N/A", "")
    del tensor


@behaviour(since=(2, 12))
def an_entry_names_its_pool() -> None:
    pool = torch.cuda.MemPool()
    _record(context=None)
    with torch.cuda.use_mem_pool(pool):
        inner = empty(3 * MIB)
    outer = empty(3 * MIB)
    found = {
        entry["addr"]: tuple(entry["pool_id"]) for entry in trace() if entry["action"] == "alloc"
    }
    assert found == {inner.data_ptr(): pool.id, outer.data_ptr(): (0, 0)}
    del inner, outer, pool


@behaviour()
def cached_memory_is_used_again_without_a_segment_entry() -> None:
    empty(3 * MIB)
    _record(context=None)
    for _ in range(3):
        empty(3 * MIB)
    assert [name for name, _ in actions(trace())] == list(_BLOCK) * 3


@behaviour()
def stacks_are_kept_as_the_context_says() -> None:
    for context, of_state, of_alloc, of_free in (
        (None, False, False, False),
        ("state", True, False, False),
        ("alloc", True, True, False),
        ("all", True, True, True),
    ):
        _record(context=context, stacks="python")
        tensors = [allocates_here()]
        assert ("allocates_here" in _frames(block_of(tensors[0]))) == of_state, context
        frees_here(tensors)
        entries = {entry["action"]: _frames(entry) for entry in trace()}
        assert ("allocates_here" in entries["alloc"]) == of_alloc, context
        assert ("frees_here" in entries["free_requested"]) == of_free, context
        assert ("allocates_here" in entries["free_requested"]) == (context == "alloc"), context
        _record(None)


@behaviour()
def giving_back_a_segment_has_a_stack_only_with_context_all() -> None:
    for context in ("state", "alloc", "all"):
        _record(context=context, stacks="python")
        empty(100)
        torch.cuda.empty_cache()
        assert ("empty_cache" in json.dumps(trace())) == (context == "all"), context
        _record(None)
        torch.cuda.empty_cache()


@behaviour()
def stacks_of_cpp_are_kept_when_asked_for() -> None:
    for stacks, has_cpp in (("all", True), ("python", False)):
        _record(context="all", stacks=stacks)
        tensor = allocates_here()
        text = _frames(block_of(tensor))
        assert ("at::" in text) == has_cpp, stacks
        assert "allocates_here" in text
        del tensor
        _record(None)


@behaviour()
def the_context_may_change_while_recording() -> None:
    def one() -> Any:
        return empty(400)

    def two() -> Any:
        return empty(400)

    _record(context="all", stacks="python")
    first = one()
    _record(context=None)
    second = two()
    entries = [entry for entry in trace() if entry["action"] == "alloc"]
    assert [entry["addr"] for entry in entries] == [first.data_ptr(), second.data_ptr()]
    assert '"one"' in _frames(entries[0])
    assert entries[1].get("frames", []) == []
    del first, second


@behaviour()
def state_alone_keeps_stacks_but_no_history() -> None:
    _record("state", stacks="python")
    tensor = allocates_here()
    assert "allocates_here" in _frames(block_of(tensor))
    empty(5000)
    assert len(trace()) <= 1
    del tensor


@behaviour()
def the_newest_entries_are_kept() -> None:
    empty(400)
    _record(context=None, max_entries=5)
    for number in range(1, 7):
        empty(number * 16)
    expected = [("free_requested", 80), ("free_completed", 80)] + [(name, 96) for name in _BLOCK]
    assert actions(trace()) == expected


@behaviour()
def the_newest_of_thousands_are_kept_with_their_stacks() -> None:
    most, made = 3001, 2600  # neither is a round number of anything
    _record(context="all", stacks="python", max_entries=most, skip_actions=["free_completed"])
    for number in range(made):
        allocates_here(512 + number)
    entries = trace()
    expected = [(name, 512 + number) for number in range(made) for name in _BLOCK[:2]]
    assert actions(entries) == expected[-most:]
    assert all(entry.get("frames") for entry in entries)
    times = [entry["time_us"] for entry in entries]
    assert times == sorted(times)


@behaviour()
def history_is_cleared_when_asked() -> None:
    _record(context=None)
    empty(400)
    _record(context=None)
    assert len(actions(trace(), *_BLOCK)) == 3
    _record(context=None, clear_history=True)
    assert trace() == []


@behaviour()
def actions_to_skip_are_skipped() -> None:
    for skip in (["free_requested"], ["free_requested", "free_completed"], ["alloc"], [], None):
        torch.cuda.empty_cache()
        _record(context=None, skip_actions=skip)
        empty(3 * MIB)
        seen = [name for name, _ in actions(trace(), *_BLOCK)]
        assert seen == [name for name in _BLOCK if name not in (skip or [])], skip
        _record(None)
    torch.cuda.empty_cache()
    _record(
        context=None, skip_actions=["segment_alloc", "segment_free", "segment_map", "segment_unmap"]
    )
    empty(3 * MIB)
    torch.cuda.empty_cache()
    assert [name for name, _ in actions(trace())] == list(_BLOCK)


@behaviour()
def an_action_of_no_known_name_is_refused() -> None:
    text = raised(Exception, lambda: _record(skip_actions=["nonsense"]))
    assert "nonsense" in text
    _record(None)


@behaviour()
def a_snapshot_leaves_an_entry_in_the_next() -> None:
    _record(context=None)
    assert trace() == []
    assert [name for name, _ in actions(trace())] == ["snapshot"]


@behaviour()
def running_out_of_memory_is_an_entry() -> None:
    _record(context="all", stacks="python")

    def too_much() -> Any:
        return empty(1 << 50)

    raised(torch.OutOfMemoryError, too_much)
    entry = trace()[-1]
    assert (entry["action"], entry["size"]) == ("oom", 1 << 50)
    assert 0 < entry["device_free"] <= torch.cuda.mem_get_info()[1]
    assert "addr" not in entry
    assert "too_much" in _frames(entry)


@behaviour()
def every_entry_carries_the_metadata_of_its_thread() -> None:
    memory = torch.cuda.memory
    for context in ("alloc", "all", "state"):
        torch.cuda.empty_cache()
        memory._set_memory_metadata("a note")
        _record(context=context, stacks="python")
        empty(400)
        torch.cuda.empty_cache()
        thread = threading.Thread(target=lambda: empty(5000))
        thread.start()
        thread.join()
        memory._set_memory_metadata("")
        entries = trace()
        notes = [entry["user_metadata"] for entry in entries if entry["size"] != 5000]
        assert notes[:5] == ["a note"] * 5, notes
        assert {e["user_metadata"] for e in entries if e["size"] == 5000} == {""}
        _record(None)


@behaviour()
def metadata_is_read_back() -> None:
    memory = torch.cuda.memory
    assert memory._get_memory_metadata() == ""
    memory._set_memory_metadata("a note")
    assert memory._get_memory_metadata() == "a note"
    memory._set_memory_metadata("")
    assert memory._get_memory_metadata() == ""


@behaviour(since=(2, 14))
def a_tensor_may_be_annotated_afterwards() -> None:
    assert torch.cuda.memory._memory_metadata_supported()
    tensor = empty(70_000)
    torch.cuda.memory._annotate_tensor(tensor, "not recorded")
    _record(context="all", stacks="python")
    torch.cuda.memory._annotate_tensor(tensor[500:], "saved for later")
    (entry,) = trace()
    assert (entry["action"], entry["user_metadata"]) == ("annotate", "saved for later")
    assert entry["addr"] == tensor.data_ptr()
    assert "annotate" in _frames(entry)
    del tensor


@behaviour(since=(2, 12))
def the_stack_of_a_live_allocation_is_found_by_its_address() -> None:
    _record(context="all", stacks="python")
    tensor = allocates_here()
    place = tensor.data_ptr()
    assert "allocates_here" in json.dumps(torch.cuda.memory._allocation_traceback(place))
    del tensor
    assert not torch.cuda.memory._allocation_traceback(place)
    _record(None)
    tensor = allocates_here()
    assert not torch.cuda.memory._allocation_traceback(tensor.data_ptr())
    del tensor


@behaviour()
def named_ranges_are_recorded_beside() -> None:
    _record(context=None, global_record_annotations=True)
    with torch.autograd.profiler.record_function("a named range"):
        empty(400)
    whole = torch.cuda.memory._snapshot()
    marks = [(mark["stage"], mark["name"]) for mark in whole["external_annotations"]]
    assert marks == [("START", "a named range"), ("END", "a named range")], marks
    start, end = (mark["time_us"] for mark in whole["external_annotations"])
    times = [entry["time_us"] for entry in whole["device_traces"][0]]
    assert start <= min(times) <= max(times) <= end


@behaviour()
def named_ranges_cost_the_same_however_many_there_were() -> None:
    _record(context=None, global_record_annotations=True)

    def seconds(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            with torch.autograd.profiler.record_function("a named range"):
                pass
        return time.perf_counter() - began

    usual = sorted(seconds(400) for _ in range(125))[62]  # 100,000 marks: as many as are kept
    later = min(seconds(400) for _ in range(3))
    _record(None)
    assert later < 20 * usual, (later, usual)


@behaviour(alone=True)
def compiled_regions_are_recorded_as_contexts() -> None:
    compiled = torch.compile(lambda x: x.new_empty(400), backend="eager")
    data = empty(16)
    compiled(data)
    _record(context=None, compile_context=True)
    compiled(data)
    empty(800)
    allocations = [entry for entry in trace() if entry["action"] == "alloc"]
    contexts = {entry["size"]: entry["compile_context"] for entry in allocations}
    assert contexts == {400: "Torch-Compiled Region: 0/0", 800: "N/A"}, contexts


@behaviour()
def the_history_of_all_threads_is_one() -> None:
    _record(context=None)
    sizes = (16, 32, 48, 64)
    threads = [threading.Thread(target=empty, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(size for name, size in actions(trace(), "alloc")) == list(sizes)


@behaviour()
def a_free_that_waits_is_completed_later() -> None:
    from tests.rig import inside

    side = torch.cuda.Stream()
    tensor = empty(3 * MIB)
    _record(context=None)
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    assert [name for name, _ in actions(trace(), *_BLOCK)] == ["free_requested"]
    inside.finish(side)
    empty(100)
    assert [name for name, _ in actions(trace(), *_BLOCK)][:2] == [
        "free_requested",
        "free_completed",
    ]


@behaviour(alone=True)
def cycles_of_tensors_are_found_by_their_stacks() -> None:
    import gc

    from torch.utils.viz._cycles import observe_tensor_cycles

    seen: list[str] = []
    disarm = observe_tensor_cycles(seen.append)

    def create() -> object:
        tensor = torch.empty(3, 4, device="cuda")

        def again(more: bool) -> object:
            return again(not more) if more else tensor

        return again

    try:
        create()
        gc.collect()
        (lambda: None)()  # the observer runs at the next call after the collection
    finally:
        disarm()
    assert len(seen) == 1
    assert "torch.Tensor" in seen[0]


@behaviour()
def history_is_asked_for_in_the_older_way_too() -> None:
    _record(True, trace_alloc_max_entries=10, trace_alloc_record_context=True)
    tensor = allocates_here()
    assert "allocates_here" in _frames(block_of(tensor))
    (entry,) = [entry for entry in trace() if entry["action"] == "alloc"]
    assert "allocates_here" in _frames(entry)
    del tensor
    _record(False)
    assert not torch._C._cuda_isHistoryEnabled()


@behaviour()
def recording_loses_no_contents() -> None:
    _record(context="all", stacks="python")
    tensors = [filled(size, 6) for size in (300, 70_000, 3 * MIB)]
    assert all(holds(tensor, 6) for tensor in tensors)
    del tensors
