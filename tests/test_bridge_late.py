"""enable() after CUDA was used: what comes is ours, what was there stays with PyTorch's.

The behaviours of pools, graphs and streams are run late too (test_behaviour.py).
"""

from __future__ import annotations

import pytest

from tests.rig.machine import Machine

pytestmark = pytest.mark.torch


def test_of_an_old_pool_and_a_new_one_the_inner_serves(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc
        def live_bytes(pool):
            return sum(block["size"] for segment in pool.snapshot() for block in segment["blocks"]
                       if block["state"] == "active_allocated")
        old = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(old):
            kept = torch.empty(1 << 20, device="cuda")
        gpumem_alloc.enable()
        new = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(old):
            with torch.cuda.use_mem_pool(new):
                inner = torch.empty(2 << 20, device="cuda")
            outer = torch.empty(3 << 20, device="cuda")
        assert (live_bytes(old) >> 20, live_bytes(new) >> 20) == (16, 8)
        with torch.cuda.use_mem_pool(new):
            with torch.cuda.use_mem_pool(old):
                last = torch.empty(1 << 20, device="cuda")
            more = torch.empty(1 << 20, device="cuda")
        assert (live_bytes(old) >> 20, live_bytes(new) >> 20) == (20, 12)
        del kept, inner, outer, last, more, old, new
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        gpumem_alloc.audit()
    """)


def test_an_old_graph_and_its_pool_outlive_the_change(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc
        def captured(**options):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, **options):
                made = torch.empty(1 << 20, device="cuda")
            return graph, made
        first, made = captured()
        gpumem_alloc.enable()
        second, more = captured(pool=first.pool())  # PyTorch's still
        assert gpumem_alloc.stats()["allocated_bytes.all.current"] == 0
        third, ours = captured()
        assert gpumem_alloc.stats()["allocated_bytes.all.current"] == 4 << 20
        for graph in (first, second, third):
            graph.replay()
        del made, more, ours, first, second, third, graph
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        assert gpumem_alloc.errors() == []
    """)


def test_raw_memory_is_freed_with_the_cache_off(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc, inside
        take, give = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
        theirs = take(5 << 20)
        gpumem_alloc.enable()
        ours = take(5 << 20)
        torch.cuda.caching_allocator_enable(False)
        used = inside.card_used_bytes()
        uncached = take(256 << 20)
        give(uncached)
        assert inside.card_used_bytes() <= used + inside.CARD_NOISE_BYTES
        give(theirs)
        give(ours)
        assert torch.cuda.memory_allocated() == 0
        torch.cuda.caching_allocator_enable(True)
        text = inside.raised(RuntimeError, lambda: give(ours))
        assert "freed twice" in text, text
    """)
