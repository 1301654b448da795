"""CUDA graphs: their pools, and what may not move between capture and replay."""

from __future__ import annotations

import threading
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import (
    KIB,
    MIB,
    empty,
    filled,
    holds,
    live_blocks,
    pool_of,
    raised,
    segments,
    stats,
    torch,
)  # fmt: skip
from tests.rig import inside


def _capture(function: Any, **options: Any) -> tuple[Any, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        outputs = function()
    return graph, outputs


@behaviour()
def what_is_made_in_a_capture_is_the_graphs() -> None:
    graph, tensors = _capture(lambda: [empty(size) for size in (100, 70 * KIB, 3 * MIB, 30 * MIB)])
    assert {pool_of(tensor) for tensor in tensors} == {graph.pool()}
    assert pool_of(empty(3 * MIB)) == (0, 0)
    graph.replay()


@behaviour()
def a_pool_for_graphs_may_be_made_before() -> None:
    pool = torch.cuda.graph_pool_handle()
    graph, tensor = _capture(lambda: empty(3 * MIB), pool=pool)
    assert graph.pool() == pool == pool_of(tensor)


@behaviour()
def graphs_without_a_common_pool_have_their_own() -> None:
    one, a = _capture(lambda: empty(3 * MIB))
    two, b = _capture(lambda: empty(3 * MIB))
    assert one.pool() != two.pool()
    assert (pool_of(a), pool_of(b)) == (one.pool(), two.pool())


@behaviour()
def graphs_of_one_pool_use_freed_memory_again() -> None:
    def temporary() -> tuple[int, Any]:
        scratch = empty(30 * MIB)
        return scratch.data_ptr(), empty(1000)

    one, (place, kept) = _capture(temporary)
    two, (place_again, kept_too) = _capture(temporary, pool=one.pool())
    assert place == place_again
    assert kept.data_ptr() != kept_too.data_ptr()
    assert one.pool() == two.pool()


@behaviour()
def many_allocations_in_a_capture_share_few_segments() -> None:
    def work() -> Any:
        for _ in range(100):
            temporary = empty(3 * MIB)
            del temporary
        return empty(3 * MIB)

    graph, tensor = _capture(work)
    assert sum(segment["total_size"] for segment in segments(graph.pool())) <= 24 * MIB
    assert live_blocks(graph.pool()) == 1
    del tensor


@behaviour()
def a_graphs_memory_stays_until_the_graph_goes() -> None:
    before = torch.cuda.memory_reserved()
    graph, tensor = _capture(lambda: empty(30 * MIB))
    pool = graph.pool()
    del tensor
    torch.cuda.empty_cache()
    assert len(segments(pool)) >= 1
    graph.replay()
    outside = [filled(30 * MIB, number) for number in range(3)]
    assert all(pool_of(tensor) == (0, 0) for tensor in outside)
    outside.clear()
    del graph
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert segments(pool) == []
    assert torch.cuda.memory_reserved() <= before


@behaviour()
def a_result_outlives_its_graph() -> None:
    graph, tensor = _capture(lambda: empty(3 * MIB))
    pool, place = graph.pool(), tensor.data_ptr()
    del graph
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    tensor.copy_(torch.full((3 * MIB,), 6, dtype=torch.uint8))
    others = [filled(3 * MIB, 1) for _ in range(8)]
    assert tensor.data_ptr() == place
    assert holds(tensor, 6)
    assert place not in [other.data_ptr() for other in others]
    del tensor, others
    torch.cuda.empty_cache()
    assert segments(pool) == []


@behaviour()
def a_pool_lives_until_its_last_graph_goes() -> None:
    one, a = _capture(lambda: empty(30 * MIB))
    two, b = _capture(lambda: empty(30 * MIB), pool=one.pool())
    pool = one.pool()
    del a, b, one
    torch.cuda.empty_cache()
    assert segments(pool) != []
    two.replay()
    two.reset()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert segments(pool) == []


@behaviour()
def a_graph_is_reset_and_captured_anew() -> None:
    graph = torch.cuda.CUDAGraph()
    pools = []
    for _ in range(3):
        with torch.cuda.graph(graph):
            tensor = empty(30 * MIB)
        pools.append(graph.pool())
        graph.replay()
        del tensor
        graph.reset()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert [segments(pool) for pool in pools] == [[], [], []]


@behaviour()
def figures_count_a_graphs_memory() -> None:
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    graph, tensor = _capture(lambda: empty(30 * MIB))
    assert torch.cuda.memory_allocated() - allocated >= 30 * MIB
    grown = torch.cuda.memory_reserved() - reserved
    assert grown >= sum(segment["total_size"] for segment in segments(graph.pool())) >= 30 * MIB
    del tensor


@behaviour()
def an_exception_in_a_capture_ends_it() -> None:
    graph = torch.cuda.CUDAGraph()

    def wrong() -> None:
        with torch.cuda.graph(graph):
            empty(3 * MIB)
            raise KeyError("of the program")

    assert "of the program" in raised(KeyError, wrong)
    assert not torch.cuda.is_current_stream_capturing()
    tensor = filled(3 * MIB, 2)
    assert pool_of(tensor) == (0, 0)
    assert holds(tensor, 2)
    graph, tensor = _capture(lambda: empty(3 * MIB))
    assert pool_of(tensor) == graph.pool()


@behaviour()
def running_out_of_memory_in_a_capture_is_the_same_error() -> None:
    allowed = torch.cuda.memory_reserved() + 100 * MIB
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
    text = raised(torch.OutOfMemoryError, lambda: _capture(lambda: empty(2 << 30)))
    assert text.startswith("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert not torch.cuda.is_current_stream_capturing()
    graph, tensor = _capture(lambda: empty(3 * MIB))
    assert pool_of(tensor) == graph.pool()


@behaviour()
def another_thread_allocates_outside_meanwhile() -> None:
    made: list[Any] = []

    def work() -> Any:
        thread = threading.Thread(target=lambda: made.append(empty(3 * MIB)))
        thread.start()
        thread.join()
        return empty(3 * MIB)

    graph, tensor = _capture(work, capture_error_mode="thread_local")
    assert pool_of(tensor) == graph.pool()
    assert pool_of(made[0]) == (0, 0)


@behaviour()
def a_side_stream_of_the_capture_is_in_the_pool() -> None:
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=main):
        a = empty(3 * MIB)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            b = empty(3 * MIB)
        main.wait_stream(side)
    if inside.ON_RIG:  # there a stream that waits for a capture is not part of it
        assert pool_of(a) == graph.pool()
    else:
        assert pool_of(a) == pool_of(b) == graph.pool()


@behaviour()
def memory_pending_elsewhere_does_not_disturb_a_capture() -> None:
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    tensor = empty(300)
    inside.hold(side)
    tensor.record_stream(side)
    del tensor

    def work() -> Any:
        kept = empty(300)
        kept.record_stream(other)
        del kept
        return empty(300)

    graph, result = _capture(work, stream=torch.cuda.Stream(), capture_error_mode="thread_local")
    assert pool_of(result) == graph.pool()
    inside.finish(side)
    torch.cuda.synchronize()
    empty(300)  # looks at what is done
    assert stats("active.all.current") >= 1


@behaviour()
def a_mempool_may_be_used_in_a_capture() -> None:
    pool = torch.cuda.MemPool()

    def work() -> tuple[Any, Any]:
        with torch.cuda.use_mem_pool(pool):
            inner = empty(3 * MIB)
        return inner, empty(3 * MIB)

    graph, (inner, outer) = _capture(work)
    assert (pool_of(inner), pool_of(outer)) == (pool.id, graph.pool())
    assert pool.use_count() >= 1


@behaviour()
def a_graph_over_a_mempools_id_uses_the_mempool() -> None:
    pool = torch.cuda.MemPool()
    graph, tensor = _capture(lambda: empty(3 * MIB), pool=pool.id)
    assert pool_of(tensor) == pool.id == graph.pool()
    assert pool.use_count() == 2
    del tensor
    graph.reset()
    assert pool.use_count() == 1


@behaviour()
def random_numbers_in_a_graph_need_no_new_memory_at_replay() -> None:
    graph, numbers = _capture(lambda: torch.rand(1000, device="cuda"))
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(5):
        graph.replay()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    del numbers


@behaviour(gpu=True)
def replays_in_capture_order_are_right_with_a_shared_pool() -> None:
    a = torch.ones(1000, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    first, second, third = (torch.cuda.CUDAGraph() for _ in range(3))
    with torch.cuda.graph(first, stream=stream):
        b = a.clone()
        c, d = b + 1, b + 2
    with torch.cuda.graph(second, stream=stream, pool=first.pool()):
        e = c + 3
        del c
    with torch.cuda.graph(third, stream=stream, pool=first.pool()):
        f = d + 4
    for graph in (first, second, third):
        graph.replay()
    assert float(e.sum()) == 5000
    assert float(f.sum()) == 7000
    first.replay()
    third.replay()
    second.replay()
    # f took over the memory of c, so the second graph, replayed last, read f's values.
    assert float(e.sum()) == 10_000
    assert float(f.sum()) == 7000


@behaviour(gpu=True)
def replays_in_any_order_are_right_with_pools_of_their_own() -> None:
    a = torch.ones(1000, device="cuda")
    first, (c, d) = _capture(lambda: (a + 1, a + 2))
    second, e = _capture(lambda: c + 3)
    third, f = _capture(lambda: d + 4)
    for order in ((first, second, third), (first, third, second)):
        for graph in order:
            graph.replay()
        assert (float(e.sum()), float(f.sum())) == (5000, 7000)


@behaviour(gpu=True)
def eager_work_between_replays_does_not_disturb_them() -> None:
    source = torch.zeros(500_000, device="cuda")

    def work() -> Any:
        value = source
        for _ in range(10):
            value = value * 1 + 1
        return value

    graph, result = _capture(work)
    for number in range(20):
        source.fill_(number)
        graph.replay()
        noise = [torch.full((500_000,), -1.0, device="cuda") for _ in range(5)]
        assert bool((result == number + 10).all()), number
        del noise
        torch.cuda.empty_cache()


@behaviour(gpu=True)
def a_result_is_right_after_its_graph_has_gone() -> None:
    source = torch.ones(1_000_000, device="cuda")
    graph, result = _capture(lambda: source + 5)
    graph.replay()
    torch.cuda.synchronize()
    del graph
    torch.cuda.empty_cache()
    noise = [torch.full((1_000_000,), -1.0, device="cuda") for _ in range(5)]
    assert bool((result == 6).all())
    del noise


@behaviour(gpu=True)
def random_numbers_differ_from_replay_to_replay_and_repeat_with_the_seed() -> None:
    graph, numbers = _capture(lambda: torch.rand(1000, device="cuda"))

    def drawn() -> list[Any]:
        torch.cuda.manual_seed(5)
        drawn = []
        for _ in range(3):
            graph.replay()
            drawn.append(numbers.clone())
        return drawn

    one, two = drawn(), drawn()
    assert not torch.equal(one[0], one[1])
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@behaviour(gpu=True)
def an_operation_that_waits_fails_the_capture_and_no_more() -> None:
    source = torch.ones(10, device="cuda")
    graph = torch.cuda.CUDAGraph()

    def wrong() -> None:
        with torch.cuda.graph(graph):
            (source + 1).sum().item()

    raised(RuntimeError, wrong)
    torch.cuda.synchronize()
    assert float((source + 1).sum()) == 20
    graph, result = _capture(lambda: source + 2)
    graph.replay()
    assert float(result.sum()) == 30


@behaviour(gpu=True)
def a_module_made_a_graph_gives_the_same_gradients() -> None:
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16)
    ).cuda()
    control = torch.nn.Sequential(
        torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16)
    ).cuda()
    control.load_state_dict(model.state_dict())
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(64, 32, device="cuda"),))
    for _ in range(4):
        data = torch.randn(64, 32, device="cuda")
        for each in (graphed, control):
            for parameter in each.parameters():
                parameter.grad = None
            each(data).norm().backward()
        for one, two in zip(graphed.parameters(), control.parameters(), strict=True):
            assert torch.allclose(one.grad, two.grad, rtol=1e-4, atol=1e-6)


@behaviour(gpu=True)
def several_modules_made_graphs_share_a_pool() -> None:
    pool = torch.cuda.graph_pool_handle()
    models = [torch.nn.Linear(32, 32).cuda() for _ in range(3)]
    data = torch.randn(8, 32, device="cuda")
    expected = [model(data).detach().clone() for model in models]
    graphed = [torch.cuda.make_graphed_callables(model, (data,), pool=pool) for model in models]
    for model, value in zip(graphed, expected, strict=True):
        assert torch.allclose(model(data), value, rtol=1e-4, atol=1e-6)


@behaviour(gpu=True)
def a_graphed_optimizer_step_is_the_eager_one() -> None:
    def train(in_graph: bool) -> Any:
        torch.manual_seed(1)
        weight = torch.nn.Parameter(torch.ones(100, device="cuda"))
        optimizer = torch.optim.Adam([weight], lr=0.1, capturable=True)
        weight.grad = torch.ones_like(weight)
        for _ in range(3):
            optimizer.step()
        graph = None
        if in_graph:
            graph, _ = _capture(optimizer.step)
        for number in range(4):
            weight.grad.fill_(number + 1.0)
            graph.replay() if graph is not None else optimizer.step()
        return weight.detach().clone()

    assert torch.allclose(train(True), train(False))
