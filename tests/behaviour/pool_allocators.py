"""MemPool over a program's own allocator, which the current allocator calls and never mixes."""

from __future__ import annotations

from typing import Any

from tests.behaviour.own_allocator import Own
from tests.behaviour.table import behaviour
from tests.behaviour.tools import MIB, empty, filled, holds, pool_of, raised, torch


@behaviour()
def a_pools_memory_comes_from_its_allocator() -> None:
    own = Own()
    pool = own.pool()
    assert pool.use_count() == 1
    assert own.counts() == (0, 0)
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(MIB, 7)
    assert own.counts() == (1, 0)
    assert holds(tensor, 7)
    assert pool_of(tensor) == pool.id
    outside = empty(MIB)
    assert own.counts() == (1, 0)
    del tensor, outside


@behaviour()
def its_segments_are_cached_and_split() -> None:
    own = Own()
    pool = own.pool()
    with torch.cuda.use_mem_pool(pool):
        tensors = [empty(MIB)]
        assert len(pool.snapshot()) == 1
        tensors.append(empty(MIB))
        assert len(pool.snapshot()) == 1  # the first segment is of two mebibytes
        tensors.append(empty(MIB))
        assert len(pool.snapshot()) == 2
    assert own.counts() == (2, 0)
    del tensors[0]
    with torch.cuda.use_mem_pool(pool):
        tensors.append(empty(MIB))
    assert own.counts() == (2, 0)
    tensors.clear()


@behaviour()
def deleting_the_pool_frees_through_its_allocator() -> None:
    own = Own()
    pool = own.pool()
    with torch.cuda.use_mem_pool(pool):
        tensors = [empty(MIB), empty(30 * MIB)]
    tensors.clear()
    assert own.counts() == (2, 0)
    del pool
    assert own.counts() == (2, 2)
    assert own.held == 0


@behaviour()
def a_tensor_outlives_pool_and_allocator() -> None:
    own = Own()

    def make() -> Any:
        pool = own.pool()
        with torch.cuda.use_mem_pool(pool):
            return filled(5 * MIB, 9)

    tensor = make()
    own.wrapper = None
    assert own.counts() == (1, 0)
    assert holds(tensor, 9)
    del tensor
    torch.cuda.empty_cache()
    assert own.counts() == (1, 1)


@behaviour()
def every_order_of_deletion_frees_as_often_as_it_allocates() -> None:
    names = ("pool", "wrapper", "tensor")
    for order in (names, names[::-1], ("wrapper", "tensor", "pool"), ("tensor", "pool", "wrapper")):
        own = Own()
        things: dict[str, Any] = {"pool": own.pool(), "wrapper": own.wrapper}
        own.wrapper = None
        with torch.cuda.use_mem_pool(things["pool"]):
            things["tensor"] = filled(3 * MIB, 2)
        for name in order:
            del things[name]
            assert "tensor" not in things or holds(things["tensor"], 2)
        torch.cuda.empty_cache()
        made, freed = own.counts()
        assert made == freed == 1, order


@behaviour()
def its_null_is_out_of_memory() -> None:
    own = Own()
    pool = own.pool()
    own.refuse(True)
    try:
        with torch.cuda.use_mem_pool(pool):
            text = raised(torch.OutOfMemoryError, lambda: empty(30 * MIB))
    finally:
        own.refuse(False)
    assert text.startswith("CUDA out of memory. Tried to allocate 30.00 MiB")
    with torch.cuda.use_mem_pool(pool):
        tensor = filled(30 * MIB, 1)
    assert holds(tensor, 1)
    del tensor


@behaviour()
def its_memory_counts_as_reserved() -> None:
    own = Own()
    reserved, allocated = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    pool = own.pool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(30 * MIB)
    assert torch.cuda.memory_reserved() == reserved + own.held
    assert torch.cuda.memory_allocated() == allocated + 30 * MIB
    del tensor, pool
    assert torch.cuda.memory_reserved() == reserved


@behaviour()
def two_pools_share_one_allocator() -> None:
    own = Own()
    one, two = own.pool(), own.pool()
    with torch.cuda.use_mem_pool(one):
        a = empty(MIB)
    with torch.cuda.use_mem_pool(two):
        b = empty(MIB)
    assert own.counts() == (2, 0)
    assert (pool_of(a), pool_of(b)) == (one.id, two.id)
    del a, b


@behaviour()
def an_emergency_pool_over_it_serves_when_memory_is_out() -> None:
    own = Own()
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + 40 * MIB
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
    pool = own.pool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(40 * MIB)
    place = tensor.data_ptr()
    raised(torch.OutOfMemoryError, lambda: empty(40 * MIB))
    del tensor
    tensor = filled(30 * MIB, 4)
    assert tensor.data_ptr() == place
    assert holds(tensor, 4)
    del tensor


@behaviour()
def a_pool_inside_a_pool_keeps_the_other_allocator() -> None:
    own = Own()
    outer, inner = torch.cuda.MemPool(), own.pool()
    with torch.cuda.use_mem_pool(outer):
        a = empty(3 * MIB)
        with torch.cuda.use_mem_pool(inner):
            b = empty(3 * MIB)
        c = empty(3 * MIB)
    assert own.counts() == (1, 0)
    assert [pool_of(t) for t in (a, b, c)] == [outer.id, inner.id, outer.id]
    del a, b, c


@behaviour(gpu=True)
def kernels_run_on_its_memory() -> None:
    own = Own()
    pool = own.pool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.arange(100_000, device="cuda")
        y = (x * 2).sum()
    assert int(y) == 99_999 * 100_000
    del x, y
