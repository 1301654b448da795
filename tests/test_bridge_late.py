"""enable() after CUDA was used: what comes is ours, what was there stays with PyTorch's.

The behaviours of pools, graphs and streams are run late too (test_behaviour.py).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

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


OTHERS_C = """
#include <stdlib.h>
#include <sys/types.h>
void* others_malloc(ssize_t size, int device, void* stream) { return malloc(size); }
void others_free(void* pointer, ssize_t size, int device, void* stream) { free(pointer); }
"""


@pytest.mark.parametrize("is_used", [False, True])
def test_another_librarys_allocator_is_not_replaced(
    bridged: Machine, tmp_path: Path, is_used: bool
) -> None:
    source, library = tmp_path / "others.c", tmp_path / "others.so"
    source.write_text(OTHERS_C)
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    run = bridged.run(f"""
        import torch, gpumem_alloc, inside
        def others():
            return torch.cuda.memory.CUDAPluggableAllocator(
                {str(library)!r}, "others_malloc", "others_free")
        torch.cuda.memory.change_current_allocator(others())
        kept = torch.empty(1000, device="cuda") if {is_used} else None
        for _ in range(2):
            text = inside.raised(gpumem_alloc.AllocatorError, gpumem_alloc.enable)
            assert len(text.splitlines()) == 3 and "place: pluggable" in text, text
        assert not gpumem_alloc.is_enabled()
        assert torch.cuda.get_allocator_backend() == "pluggable"
        more = torch.empty(1000, device="cuda")
    """)
    assert run.stderr == ""


STATE = """
    import torch, gpumem_alloc, inside
    torch.cuda.set_per_process_memory_fraction(0.25)
    torch.cuda.memory._set_memory_metadata("mine")
    first = torch.empty(1 << 20, device="cuda")
    gpumem_alloc.enable(OPTIONS)
    LIMITS
    assert torch.cuda.memory._get_memory_metadata() == "mine"
    torch.empty(limit - (64 << 20), dtype=torch.uint8, device="cuda")
    inside.raised(torch.OutOfMemoryError,
                  lambda: torch.empty(limit + 1, dtype=torch.uint8, device="cuda"))
"""


@pytest.mark.parametrize(("options", "is_smaller"), [("", False), ("limit_mb=1024", True)])
def test_fraction_and_metadata_come_along(bridged: Machine, options: str, is_smaller: bool) -> None:
    fraction = "limit / torch.cuda.mem_get_info()[1]" if is_smaller else "0.25"
    limits = (
        f"limit = {'1 << 30' if is_smaller else 'torch.cuda.mem_get_info()[1] // 4'}\n"
        f"    assert abs(torch.cuda.get_per_process_memory_fraction() - {fraction}) < 0.001"
    )
    bridged.run(STATE.replace("OPTIONS", options).replace("LIMITS", limits))


def test_a_cache_turned_off_stays_off(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc
        kept = [torch.empty(100, device="cuda") for _ in range(3)]
        place = torch.cuda.caching_allocator_alloc(5000)
        torch.cuda.caching_allocator_enable(False)
        gpumem_alloc.enable()
        x = torch.empty(1 << 20, device="cuda")
        assert gpumem_alloc.stats()["allocated_bytes.all.current"] == 0
        torch.cuda.caching_allocator_delete(place)  # a piece of a segment of PyTorch's
        torch.cuda.caching_allocator_enable(True)
        y = torch.empty(1 << 20, device="cuda")
        assert gpumem_alloc.stats()["allocated_bytes.all.current"] == 4 << 20
        del kept, x, y
        assert torch.cuda.memory_allocated() == 0
    """)


def test_history_that_was_on_is_named_and_ends_with_ours(bridged: Machine) -> None:
    run = bridged.run("""
        import torch, gpumem_alloc
        record = torch.cuda.memory._record_memory_history
        def actions():
            (trace, *_) = torch.cuda.memory._snapshot()["device_traces"]
            assert trace == sorted(trace, key=lambda entry: entry["time_us"])
            return [(entry["action"], entry["size"]) for entry in trace
                    if entry["action"] in ("alloc", "free_requested")]
        record(stacks="python")
        first = torch.empty(1 << 20, device="cuda")
        gpumem_alloc.enable()
        assert torch._C._cuda_isHistoryEnabled()
        second = torch.empty(2 << 20, device="cuda")
        assert actions() == [("alloc", 4 << 20)]
        record(stacks="python")
        third = torch.empty(3 << 20, device="cuda")
        del first
        fourth = torch.empty(4 << 20, device="cuda")
        assert actions()[-3:] == [("alloc", 12 << 20), ("free_requested", 4 << 20),
                                  ("alloc", 16 << 20)]
        record(None)
        assert not torch._C._cuda_isHistoryEnabled()
        assert actions() == []
    """)
    (line, source) = run.stderr.splitlines()
    assert "RuntimeWarning: gpumem_alloc: memory history goes on for what PyTorch's" in line
    assert source.strip() == "gpumem_alloc.enable()"


def test_nothing_is_said_where_nothing_is_lost(bridged: Machine) -> None:
    run = bridged.run("""
        import torch, gpumem_alloc
        x = torch.empty(1 << 20, device="cuda")
        gpumem_alloc.enable()
        assert not torch._C._cuda_isHistoryEnabled()
    """)
    assert run.stderr == ""
