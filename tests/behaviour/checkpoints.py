"""The state of a graph's pool, saved and put back, as cudagraph trees do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import KIB, MIB, empty, live_blocks, pool_of, raised, segments, torch


def _graphed(function: Callable[[], Any], pool: Any = None, stream: Any = None) -> tuple[Any, Any]:
    """A graph of a function, after a round without one, and what the function returned."""
    torch.cuda.synchronize()
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        outputs = function()
    return graph, outputs


def _state(pool: Any) -> Any:
    return torch._C._cuda_getCheckpointState(0, pool)


def _restore(state: Any, stale: Any = (), revived: Any = ()) -> None:
    torch._C._cuda_setCheckpointPoolState(
        0,
        state,
        [tensor.untyped_storage()._cdata for tensor in stale],
        [tensor.untyped_storage()._cdata for tensor in revived],
    )


def _shown(pool: Any) -> list[tuple[Any, ...]]:
    fields = ("address", "total_size", "allocated_size", "active_size", "segment_type")
    return [
        (
            *(segment[field] for field in fields),
            [(block["address"], block["size"], block["state"]) for block in segment["blocks"]],
        )
        for segment in segments(pool)
    ]


def _check_round_trip(function: Callable[[], Any]) -> None:
    graph, outputs = _graphed(function)
    before = _shown(graph.pool())
    assert before
    state = _state(graph.pool())
    _restore(state)
    after = _shown(graph.pool())
    assert all(segment in after for segment in before), (before, after)
    del outputs


def _revived(place: int, like: Any) -> Any:
    storage = torch._C._construct_storage_from_data_pointer(
        place, torch.device("cuda", 0), like["nbytes"]
    )
    tensor = torch.empty([0], device="cuda", dtype=torch.uint8)
    tensor.set_(source=storage, storage_offset=0, size=like["size"], stride=(1,))
    return tensor


@behaviour()
def a_state_put_back_is_the_same() -> None:
    def function() -> Any:
        x = empty(8 * MIB)
        x = [x, empty(8 * MIB)][1]
        parts = [empty(MIB) for _ in range(3)]
        y = empty(MIB)
        del parts
        return x, y, empty(MIB)

    _check_round_trip(function)


@behaviour()
def a_block_in_the_middle_is_put_back() -> None:
    _check_round_trip(lambda: [empty(512) for _ in range(11)][5])


@behaviour()
def several_blocks_in_the_middle_are_put_back() -> None:
    def function() -> Any:
        small = [empty(512) for _ in range(11)]
        return small[5], small[8]

    _check_round_trip(function)


@behaviour()
def neighbours_in_the_middle_are_put_back() -> None:
    def function() -> Any:
        small = [empty(512) for _ in range(11)]
        return small[5], small[6]

    _check_round_trip(function)


@behaviour()
def large_and_small_blocks_together_are_put_back() -> None:
    def function() -> Any:
        made = [empty(size) for size in (100, 3 * MIB, 70 * KIB, 30 * MIB, 900 * KIB, 12 * MIB)]
        return made[::2]

    _check_round_trip(function)


@behaviour()
def what_a_later_graph_made_is_freed() -> None:
    graph, outputs = _graphed(lambda: (empty(512),))
    before = _shown(graph.pool())
    state = _state(graph.pool())
    second, later = _graphed(lambda: (empty(512),), pool=graph.pool())
    assert live_blocks(graph.pool()) == 2
    _restore(state, stale=later)
    del later
    after = _shown(graph.pool())
    assert all(segment in after for segment in before)
    assert live_blocks(graph.pool()) == 1
    del outputs, second


@behaviour()
def tensors_that_died_live_again_as_blocks() -> None:
    graph, outputs = _graphed(lambda: (empty(512), empty(512)))
    pool = graph.pool()
    state = _state(pool)
    places = [output.data_ptr() for output in outputs]
    del outputs
    assert live_blocks(pool) == 0
    _restore(state)
    assert live_blocks(pool) == 2
    torch._C._cuda_cudaCachingAllocator_raw_delete(places[0])
    assert live_blocks(pool) == 1
    torch._C._cuda_cudaCachingAllocator_raw_delete(places[1])
    assert live_blocks(pool) == 0


@behaviour()
def a_tensor_made_anew_over_a_block_frees_it() -> None:
    sizes = (2 * MIB, 2 * MIB, 20 * MIB)
    graph, outputs = _graphed(lambda: [empty(size) for size in sizes])
    pool = graph.pool()
    state = _state(pool)
    places = [output.data_ptr() for output in outputs]
    about = [{"nbytes": size, "size": (size,)} for size in sizes]
    assert live_blocks(pool) == 3
    del outputs
    assert live_blocks(pool) == 0
    tensors = [_revived(place, like) for place, like in zip(places, about, strict=True)]
    _restore(state, revived=tensors[:2])
    assert live_blocks(pool) == 3
    tensors[0] = None
    assert live_blocks(pool) == 2
    tensors[1] = None
    assert live_blocks(pool) == 1
    tensors[2] = None  # it was not given its deleter back
    assert live_blocks(pool) == 1
    torch._C._cuda_cudaCachingAllocator_raw_delete(places[2])
    assert live_blocks(pool) == 0


@behaviour()
def after_putting_back_the_same_requests_get_the_same_places() -> None:
    def function() -> Any:
        return [empty(size) for size in (700, 3 * MIB, 70 * KIB, 12 * MIB)]

    stream = torch.cuda.Stream()
    graph, outputs = _graphed(function, stream=stream)
    pool = graph.pool()
    state = _state(pool)
    places = []
    for _ in range(3):
        _, more = _graphed(function, pool, stream)
        places.append([tensor.data_ptr() for tensor in more])
        _restore(state, stale=more)
        del more
    assert places[0] == places[1] == places[2]
    del outputs


@behaviour()
def live_allocations_are_known_exactly() -> None:
    pool = torch.cuda.graph_pool_handle()
    graph, output = _graphed(lambda: empty(16), pool=pool)

    def check(places: set[int]) -> bool:
        return bool(torch._C._cuda_checkPoolLiveAllocations(0, pool, places))

    place = output.data_ptr()
    assert check({place})
    assert not check({place, 0})
    assert not check(set())
    del output
    assert check(set())
    del graph


@behaviour()
def one_thread_may_allocate_to_the_pool_again() -> None:
    pool = torch.cuda.graph_pool_handle()
    graph, output = _graphed(lambda: empty(16), pool=pool)
    del output
    found: dict[str, set[Any]] = {}

    def use_pool() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
            inside = [empty(20 * MIB) for _ in range(3)]
            found["inside"] = {pool_of(tensor) for tensor in inside}
            torch._C._cuda_endAllocateToPool(0, pool)
            torch._C._cuda_releasePool(0, pool)
            found["after"] = {pool_of(empty(20 * MIB))}

    def use_none() -> None:
        for _ in range(5):
            tensors = [empty(20 * MIB) for _ in range(2)]
            found.setdefault("beside", set()).update(pool_of(tensor) for tensor in tensors)
            tensors.clear()

    threads = [threading.Thread(target=use_pool), threading.Thread(target=use_none)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"inside": {pool}, "after": {(0, 0)}, "beside": {(0, 0)}}
    del graph
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert segments(pool) == []


@behaviour()
def an_unknown_pool_has_no_state() -> None:
    raised(RuntimeError, lambda: _state((0, 987654321)))


@behaviour()
def the_standard_deleter_is_known() -> None:
    tensor = empty(1000)
    assert torch._C._has_Standard_Deleter(tensor.untyped_storage()._cdata)
    foreign = _revived(tensor.data_ptr(), {"nbytes": 1000, "size": (1000,)})
    assert not torch._C._has_Standard_Deleter(foreign.untyped_storage()._cdata)
    del foreign


@behaviour(gpu=True)
def contents_are_those_of_the_last_replay() -> None:
    source = torch.tensor([1], device="cuda")
    one = {"device": "cuda", "dtype": torch.uint8}
    graph, outputs = _graphed(
        lambda: [torch.ones(size, **one) + source for size in (2 * MIB, 20 * MIB)]
    )
    graph.replay()
    state = _state(graph.pool())
    assert all(bool((output == 2).all()) for output in outputs)
    places = [output.data_ptr() for output in outputs]
    torch.cuda.synchronize()
    _restore(state)
    source.add_(1)
    graph.replay()
    assert [output.data_ptr() for output in outputs] == places
    assert all(bool((output == 3).all()) for output in outputs)


@behaviour(gpu=True, alone=True)
def compiled_with_cudagraphs_a_model_learns_the_same() -> None:
    def train(compiled: bool) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
        ).cuda()
        step = torch.compile(model, mode="reduce-overhead") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.randn(64, 32, device="cuda")
        losses = []
        for _ in range(6):
            loss = step(data).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses

    for one, two in zip(train(True), train(False), strict=True):
        assert abs(one - two) <= 1e-3 * abs(two) + 1e-6, (one, two)
