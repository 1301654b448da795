"""Streams, pools and threads through the stock door."""

from __future__ import annotations

import pytest

from tests.rig.machine import Machine

pytestmark = pytest.mark.torch

CARD = {"RIG_CAPACITY_MB": "1024"}


def test_memory_recorded_on_a_slow_stream_is_not_used_again(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        side = torch.cuda.Stream()
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        place = x.data_ptr()
        inside.hold(side)
        x.record_stream(side)
        del x
        assert torch.cuda.memory_allocated() == 0
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 64 << 20
        y = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        assert not place <= y.data_ptr() < place + (64 << 20)
        inside.finish(side)
        del y
        z = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 64 << 20
        gpumem_alloc.audit()
    """)


def test_with_the_card_full_only_the_needed_event_is_waited_for(rig: Machine) -> None:
    rig.run(
        """
        import torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        slow, other = torch.cuda.Stream(), torch.cuda.Stream()
        x = torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
        y = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        for stream, tensor in ((slow, x), (other, y)):
            inside.hold(stream)
            tensor.record_stream(stream)
        del x, y, tensor
        z = torch.empty(500 << 20, dtype=torch.uint8, device="cuda")  # the first attempt succeeds
        assert gpumem_alloc.stats()["num_ooms"] == 0
        assert inside.calls("cuEventSynchronize") == 1
        assert inside.calls("cuCtxSynchronize") == inside.calls("cudaDeviceSynchronize") == 0
        assert slow.query() and not other.query()
        gpumem_alloc.audit()
        """,
        env=CARD,
    )


def test_one_slow_stream_does_not_hold_back_others(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
        x = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        y = torch.empty(48 << 20, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        inside.hold(slow)
        x.record_stream(slow)
        y.record_stream(quick)
        del x, y
        quick.synchronize()
        z = torch.empty(512, dtype=torch.uint8, device="cuda")  # looks at frees
        z = torch.empty(48 << 20, dtype=torch.uint8, device="cuda")
        active = torch.cuda.memory_stats()["active_bytes.all.current"]
        assert active == (32 + 48) << 20, active / 2**20
        inside.finish(slow)
    """)


def test_an_idle_streams_memory_serves_another(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        for _ in range(20):
            with torch.cuda.stream(torch.cuda.Stream()):
                a = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
                b = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
                del a, b
            torch.cuda.synchronize()
        assert torch.cuda.max_memory_reserved() <= 210 << 20, torch.cuda.max_memory_reserved() >> 20
        gpumem_alloc.audit()
    """)


POOL = """
    import contextlib, torch, gpumem_alloc
    gpumem_alloc.enable()

    @contextlib.contextmanager
    def pool(id):
        torch._C._cuda_beginAllocateToPool(0, id)
        try:
            yield
        finally:
            torch._C._cuda_endAllocateToPool(0, id)

    def release(id):
        torch._C._cuda_releasePool(0, id)

    def ranges():
        return {s["segment_pool_id"]: [(b["address"], b["size"]) for b in s["blocks"]]
                for s in torch.cuda.memory_snapshot()}

    def empty(mib):
        return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

    def pool_of(tensor):
        for segment in torch.cuda.memory_snapshot():
            if 0 <= tensor.data_ptr() - segment["address"] < segment["total_size"]:
                return segment["segment_pool_id"]
"""


def test_nested_pools_have_memory_of_their_own(machine: Machine) -> None:
    machine.run(
        POOL
        + """
    with pool((0, 7)):
        a = empty(8)
        with pool((0, 8)):
            b = empty(8)
        c = empty(8)
    d = empty(8)
    assert [pool_of(t) for t in (a, b, c, d)] == [(0, 7), (0, 8), (0, 7), (0, 0)]
    place = b.data_ptr()
    del b
    e = empty(8)  # outside: the pool's memory is not shared
    assert e.data_ptr() != place and pool_of(e) == (0, 0)
    gpumem_alloc.audit()
    """
    )


def test_big_free_bigger_works_inside_a_pool(machine: Machine) -> None:
    machine.run(
        POOL
        + """
    with pool((0, 7)):
        for mib in (64, 128, 256, 300):
            x = empty(mib)
            assert pool_of(x) == (0, 7)
            del x
    release((0, 7))
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    gpumem_alloc.audit()
    """
    )


@pytest.mark.parametrize("order", ["tensor first", "pool first", "empty first"])
def test_a_tensor_may_outlive_its_pool(machine: Machine, order: str) -> None:
    machine.run(
        POOL
        + f"""
    order = {order!r}
    with pool((0, 7)):
        x = torch.arange(1000, device="cpu").cuda()
    if order == "tensor first":
        del x
        release((0, 7))
    else:
        release((0, 7))
        if order == "empty first":
            torch.cuda.empty_cache()
        assert x.cpu().sum() == 499500
        del x
    torch.cuda.empty_cache()
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocation.all.freed"] == 1
    assert torch.cuda.memory_reserved() == 0
    assert gpumem_alloc.errors() == []
    gpumem_alloc.audit()
    """
    )


def test_a_tensor_may_outlive_the_allocator_object(machine: Machine) -> None:
    machine.run("""
        import gc, torch, gpumem_alloc
        torch.cuda.memory.change_current_allocator(gpumem_alloc.allocator())
        x = torch.ones(1000).cuda()
        del gpumem_alloc
        gc.collect()
        assert x.cpu().sum() == 1000
        del x
        y = torch.ones(1000).cuda()
    """)


def test_a_graph_is_captured_in_memory_of_its_own(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        x = torch.ones(1 << 20, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            a = x * 2
            b = a + 1
            del a
            c = b * 3
        for _ in range(3):
            noise = [torch.empty(4 << 20, dtype=torch.uint8, device="cuda") for _ in range(4)]
            graph.replay()
        torch.cuda.synchronize()
        if torch.cuda.get_device_name() != "Rig card":
            assert c.cpu().eq(9).all()
        places = {c.data_ptr()} & {tensor.data_ptr() for tensor in noise}
        assert not places
        del b, c, graph, noise
        torch.cuda.empty_cache()
        assert gpumem_alloc.errors() == [], gpumem_alloc.errors()
        assert torch.cuda.memory_allocated() == 4 << 20
        gpumem_alloc.audit()
    """)


def test_threads_allocate_and_free_each_others_tensors(machine: Machine) -> None:
    machine.run("""
        import queue, random, threading, torch, gpumem_alloc
        gpumem_alloc.enable()
        torch.cuda.init()
        box, wrong = queue.Queue(), []

        def work(seed):
            rng = random.Random(seed)
            for step in range(200):
                n = int(2 ** rng.uniform(2, 18))
                tensor = torch.full((n,), step, dtype=torch.int32).cuda()
                box.put((tensor, step))
                other, value = box.get()
                if not other.cpu().eq(value).all():
                    wrong.append((seed, step))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert wrong == [] and torch.cuda.memory_allocated() == 0
        gpumem_alloc.audit()
    """)


@pytest.mark.gpu
def test_large_temporaries_freed_under_running_kernels(gpu: Machine) -> None:
    gpu.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        x = torch.ones(64 << 20, device="cuda")
        for step in range(200):
            y = x + step
            z = y * 2
            del y
            w = torch.empty((step % 37 + 1) << 20, dtype=torch.uint8, device="cuda").fill_(step)
            assert step % 50 or z[::9999999].eq(2 * (1 + step)).all()
        torch.cuda.synchronize()
    """)


GRAPH_TREE_CALLS = {
    "live blocks": "torch._C._cuda_checkPoolLiveAllocations(0, (0, 7), set())",
    "a pool's state": "torch._C._cuda_getCheckpointState(0, (0, 7))",
    "an earlier state": "torch._C._cuda_setCheckpointPoolState(0, None, [], [])",
}


@pytest.mark.parametrize("what", GRAPH_TREE_CALLS)
def test_what_graph_trees_call_says_what_to_do(machine: Machine, what: str) -> None:
    run = machine.run(f"""
        import torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        x = torch.ones(1000).cuda()
        call = lambda: {GRAPH_TREE_CALLS[what]}
        print(inside.raised(gpumem_alloc.AllocatorError, call))
    """)
    what_happened, why, do = run.stdout.strip().split("\n")
    assert "no hook" in what_happened
    assert "CUDA graph trees" in why
    assert "cudagraph_trees = False" in do


@pytest.mark.gpu
def test_reduce_overhead_says_why_not_and_runs_without_trees(gpu: Machine) -> None:
    gpu.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        x = torch.randn(1000, device="cuda")

        def f(x):
            return (x * 2).relu().sum()

        why_not = ""
        try:
            compiled = torch.compile(f, mode="reduce-overhead")
            for _ in range(3):
                compiled(x)
        except Exception as error:
            why_not = str(error)
        assert "cudagraph_trees = False" in why_not, why_not
        torch._dynamo.reset()
        torch._inductor.config.triton.cudagraph_trees = False
        compiled = torch.compile(f, mode="reduce-overhead")
        for _ in range(3):
            torch.testing.assert_close(compiled(x), f(x))
        gpumem_alloc.audit()
    """)
