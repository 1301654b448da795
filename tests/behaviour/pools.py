"""MemPool and use_mem_pool: private memory, its counts, and every order of deletion."""

from __future__ import annotations

import threading
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import (
    GIB,
    KIB,
    MIB,
    empty,
    filled,
    holds,
    pool_of,
    raised,
    segments,
    stats,
    torch,
)  # fmt: skip


def _limit(size: int) -> None:
    """Leave this much beyond what is reserved."""
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + size
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])


@behaviour()
def every_pool_has_an_id_of_its_own() -> None:
    handle, pool = torch.cuda.graph_pool_handle(), torch.cuda.MemPool()
    other = torch.cuda.MemPool()
    assert (handle[0] == 0) == (pool.id[0] == 0)
    assert handle[1] < pool.id[1] < other.id[1]
    assert getattr(pool, "allocator", None) is None


@behaviour()
def threads_get_pools_of_their_own() -> None:
    ids: list[tuple[int, int]] = []
    threads = [
        threading.Thread(target=lambda: ids.append(torch.cuda.MemPool().id)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 4


@behaviour()
def a_pool_is_counted_while_it_is_used() -> None:
    pool = torch.cuda.MemPool()
    assert pool.use_count() == 1
    with torch.cuda.use_mem_pool(pool):
        assert pool.use_count() == 2
        empty(100)
        assert pool.use_count() == 2
    assert pool.use_count() == 1


@behaviour(alone=True)  # native keeps the pool's memory afterwards
def a_pool_is_not_entered_twice() -> None:
    pool = torch.cuda.MemPool()

    def enter() -> None:
        with torch.cuda.use_mem_pool(pool):
            pass

    with torch.cuda.use_mem_pool(pool):
        assert "already recording" in raised(RuntimeError, enter)
        assert pool_of(empty(MIB)) == pool.id


@a_pool_is_not_entered_twice.differs("a pool may be used inside itself; it is left as often")
def _() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        with torch.cuda.use_mem_pool(pool):
            assert pool.use_count() == 3
            assert pool_of(empty(MIB)) == pool.id
        assert pool.use_count() == 2
        assert pool_of(empty(MIB)) == pool.id
    assert pool.use_count() == 1
    assert pool_of(empty(MIB)) == (0, 0)


@behaviour()
def tensors_made_inside_are_the_pools() -> None:
    pool = torch.cuda.MemPool()
    before = empty(MIB)
    with torch.cuda.use_mem_pool(pool):
        small, large = filled(1000, 3), filled(30 * MIB, 4)
    after = empty(MIB)
    assert [pool_of(t) for t in (before, small, large, after)] == [(0, 0), pool.id, pool.id, (0, 0)]
    assert holds(small, 3)
    assert holds(large, 4)
    del small, large, pool


@behaviour()
def the_pools_free_memory_serves_only_the_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(30 * MIB)
    place = tensor.data_ptr()
    del tensor
    assert empty(30 * MIB).data_ptr() != place
    with torch.cuda.use_mem_pool(pool):
        assert empty(30 * MIB).data_ptr() == place
    assert len(pool.snapshot()) == 1
    del pool


@behaviour()
def a_pool_does_not_take_what_is_cached_outside() -> None:
    outside = empty(30 * MIB)
    place = outside.data_ptr()
    del outside
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        assert empty(30 * MIB).data_ptr() != place
    del pool


@behaviour()
def nested_pools_each_get_their_own() -> None:
    pools = [torch.cuda.MemPool() for _ in range(3)]
    made: list[Any] = []
    with torch.cuda.use_mem_pool(pools[0]):
        made.append(empty(20 * MIB))
        with torch.cuda.use_mem_pool(pools[1]):
            made.append(empty(20 * MIB))
            with torch.cuda.use_mem_pool(pools[2]):
                made.append(empty(20 * MIB))
            made.append(empty(20 * MIB))
        made.append(empty(20 * MIB))
    made.append(empty(20 * MIB))
    order = (0, 1, 2, 1, 0)
    assert [pool_of(t) for t in made] == [pools[n].id for n in order] + [(0, 0)]
    blocks = [sum(len(s["blocks"]) for s in pool.snapshot()) for pool in pools]
    assert blocks[0] >= 2 <= blocks[1]
    assert blocks[2] >= 1
    made.clear()
    del pools


@behaviour()
def big_free_bigger_works_inside() -> None:
    _limit(800 * MIB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        for mebibytes in (64, 128, 256, 300):
            tensor = empty(mebibytes * MIB)
            del tensor
        assert stats("num_ooms") == 0
    del pool


@behaviour()
def an_exception_inside_ends_the_use() -> None:
    pool = torch.cuda.MemPool()

    def inside_it() -> None:
        with torch.cuda.use_mem_pool(pool):
            raise KeyError("of the program")

    assert "of the program" in raised(KeyError, inside_it)
    assert pool.use_count() == 1
    assert pool_of(empty(MIB)) == (0, 0)


@behaviour()
def only_this_thread_is_routed() -> None:
    pool = torch.cuda.MemPool()
    made: list[Any] = []
    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: made.append(empty(3 * MIB)))
        thread.start()
        thread.join()
        made.append(empty(3 * MIB))
    assert [pool_of(tensor) for tensor in made] == [(0, 0), pool.id]
    made.clear()
    del pool


@behaviour()
def two_threads_use_two_pools_at_once() -> None:
    pools = [torch.cuda.MemPool(), torch.cuda.MemPool()]
    both, found = threading.Barrier(2), {}

    def work(number: int) -> None:
        with torch.cuda.use_mem_pool(pools[number]):
            both.wait()
            tensors = [filled(size, number) for size in (100, 70 * KIB, 3 * MIB)]
            both.wait()
        found[number] = ({pool_of(t) for t in tensors}, all(holds(t, number) for t in tensors))

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: ({pools[0].id}, True), 1: ({pools[1].id}, True)}


@behaviour()
def a_pools_memory_counts_in_the_statistics() -> None:
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(30 * MIB)
    assert torch.cuda.memory_allocated() == allocated + 30 * MIB
    assert torch.cuda.memory_reserved() >= reserved + 30 * MIB
    del tensor, pool


@behaviour()
def empty_cache_leaves_a_pool_that_is_held() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(30 * MIB)
    del tensor
    torch.cuda.empty_cache()
    assert len(pool.snapshot()) == 1
    del pool


@behaviour()
def deleting_a_pool_gives_its_memory_back() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(30 * MIB)
    name = pool.id
    del tensor
    assert len(segments(name)) == 1
    del pool
    assert segments(name) == []
    assert torch.cuda.memory_reserved() == before


@behaviour()
def a_tensor_outlives_its_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(3 * MIB, 8)
    name = pool.id
    del pool
    assert holds(tensor, 8)
    assert pool_of(tensor) == name
    other = [filled(3 * MIB, number) for number in range(4)]
    assert holds(tensor, 8)
    del tensor, other
    torch.cuda.empty_cache()
    assert segments(name) == []


@behaviour()
def pools_and_tensors_die_in_every_order() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    for order in (("pool", "a", "b"), ("a", "pool", "b"), ("b", "a", "pool"), ("a", "b", "pool")):
        things: dict[str, Any] = {"pool": torch.cuda.MemPool()}
        with torch.cuda.use_mem_pool(things["pool"]):
            things["a"], things["b"] = filled(700, 1), filled(5 * MIB, 2)
        for name in order:
            del things[name]
            for rest, value in (("a", 1), ("b", 2)):
                assert rest not in things or holds(things[rest], value), order
        torch.cuda.empty_cache()
        assert (torch.cuda.memory_reserved(), torch.cuda.memory_allocated()) == before, order


@behaviour()
def empty_cache_inside_a_pool_leaves_what_it_serves() -> None:
    pools = [torch.cuda.MemPool() for _ in range(3)]

    def work(pool: Any) -> None:
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(400)
            del tensor
            torch.cuda.empty_cache()

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(pool.snapshot()) for pool in pools] == [1, 1, 1]
    del pools


@behaviour()
def a_pool_for_emergencies_serves_when_memory_is_out() -> None:
    _limit(80 * MIB)
    kept, shared = torch.cuda.MemPool(), torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(kept):
        a = empty(40 * MIB)
    with torch.cuda.use_mem_pool(shared):
        b = empty(40 * MIB)
    place = b.data_ptr()
    raised(torch.OutOfMemoryError, lambda: empty(40 * MIB))
    del a, b
    c = empty(30 * MIB)
    assert c.data_ptr() == place
    raised(torch.OutOfMemoryError, lambda: empty(30 * MIB))
    del c
    with torch.cuda.use_mem_pool(shared):
        e = empty(20 * MIB)
    assert e.data_ptr() == place
    del e, kept, shared


@behaviour()
def a_deleted_pool_serves_no_emergency() -> None:
    _limit(40 * MIB)
    for _ in range(5):
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            tensor = empty(40 * MIB)
        del tensor, pool
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(40 * MIB)
    place = tensor.data_ptr()
    del tensor
    b, c = filled(20 * MIB, 1), filled(20 * MIB, 2)
    assert {b.data_ptr(), c.data_ptr()} == {place, place + 20 * MIB}
    assert holds(b, 1)
    assert holds(c, 2)
    del b, c, pool


@behaviour()
def without_splitting_each_block_is_a_segment() -> None:
    splits, whole = torch.cuda.MemPool(), torch.cuda.MemPool(no_split=True)
    tensors = []
    for _ in range(2):
        for pool in (splits, whole):
            with torch.cuda.use_mem_pool(pool):
                tensors.append(empty(4 * MIB))
    assert [len(segment["blocks"]) for segment in whole.snapshot()] == [1, 1]
    assert len(whole.snapshot()) > len(splits.snapshot())
    tensors.clear()
    del splits, whole


@without_splitting_each_block_is_a_segment.differs(
    "a block is whole chunks of its own, which the snapshot shows side by side in one segment"
)
def _() -> None:
    whole = torch.cuda.MemPool(no_split=True)
    tensors = []
    for _ in range(2):
        with torch.cuda.use_mem_pool(whole):
            tensors.append(empty(4 * MIB + 512))
    blocks = [block for segment in whole.snapshot() for block in segment["blocks"]]
    assert [block["state"] for block in blocks] == ["active_allocated"] * 2
    assert all(block["size"] % (2 * MIB) == 0 for block in blocks)
    tensors.clear()


@behaviour()
def begun_by_hand_a_pool_takes_all_threads() -> None:
    pool = torch.cuda.graph_pool_handle()
    device = torch.cuda.current_device()
    made: list[Any] = []
    torch._C._cuda_beginAllocateToPool(device, pool)
    thread = threading.Thread(target=lambda: made.append(empty(3 * MIB)))
    thread.start()
    thread.join()
    torch._C._cuda_endAllocateToPool(device, pool)
    assert pool_of(made[0]) == pool
    made.clear()
    torch._C._cuda_releasePool(device, pool)
    torch.cuda.empty_cache()
    assert segments(pool) == []


@behaviour()
def out_of_memory_inside_a_pool_is_the_same_error() -> None:
    _limit(GIB // 4)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        text = raised(torch.OutOfMemoryError, lambda: empty(2 * GIB))
        tensor = filled(5 * MIB, 1)
    assert text.startswith("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert holds(tensor, 1)
    del tensor, pool


@behaviour()
def a_tensor_of_a_pool_is_recorded_on_streams() -> None:
    from tests.rig import inside

    side, pool = torch.cuda.Stream(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(30 * MIB)
        place = tensor.data_ptr()
        inside.hold(side)
        tensor.record_stream(side)
        del tensor
        other = empty(30 * MIB)
    assert other.data_ptr() != place
    inside.finish(side)
    del other, pool
