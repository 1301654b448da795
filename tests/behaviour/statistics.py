"""memory_stats() and all that is read from it: names, meanings, peaks and resets."""

from __future__ import annotations

import threading
import warnings

from tests.behaviour.table import behaviour
from tests.behaviour.tools import KIB, MIB, empty, raised, segments, stats, torch, version
from tests.rig import inside

_GAUGES = ("current", "peak", "allocated", "freed")


def _names() -> set[str]:
    counts = ("allocation", "segment", "active", "inactive_split")
    sizes = ("allocated", "reserved", "active", "inactive_split", "requested")
    kinds = [*counts, *(f"{size}_bytes" for size in sizes)]
    names = {
        f"{kind}.{pool}.{gauge}"
        for kind in kinds
        for pool in ("all", "small_pool", "large_pool")
        for gauge in _GAUGES
    }
    names |= {
        f"oversize_{what}.{gauge}" for what in ("allocations", "segments") for gauge in _GAUGES
    }
    names |= {"num_alloc_retries", "num_ooms", "num_sync_all_streams"}
    names |= {"num_device_alloc", "num_device_free", "max_split_size"}
    return names | ({"num_oom_rejections"} if version() >= (2, 12) else set())


@behaviour()
def memory_stats_has_exactly_pytorchs_names() -> None:
    names = set(torch.cuda.memory_stats())
    names = {name for name in names if not name.startswith("reserved_bytes_by_private_pools")}
    assert names == _names(), names ^ _names()
    assert list(torch.cuda.memory_stats()) == sorted(torch.cuda.memory_stats())


@behaviour()
def the_nested_form_has_the_same_figures() -> None:
    tensor = empty(5 * MIB)
    flat, nested = torch.cuda.memory_stats(), torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["large_pool"]["current"] == 5 * MIB
    assert nested["num_ooms"] == flat["num_ooms"]
    for kind in ("allocation", "requested_bytes", "reserved_bytes"):
        for gauge in _GAUGES:
            assert nested[kind]["all"][gauge] == flat[f"{kind}.all.{gauge}"]
    del tensor


@behaviour()
def allocated_bytes_are_rounded_to_512_and_requested_are_not() -> None:
    for size, rounded in ((1, 512), (512, 512), (513, 1024), (2000, 2048), (4096, 4096)):
        allocated, requested = (
            stats("allocated_bytes.all.current"),
            stats("requested_bytes.all.current"),
        )
        tensor = empty(size)
        assert stats("allocated_bytes.all.current") == allocated + rounded, size
        assert stats("requested_bytes.all.current") == requested + size, size
        del tensor


@behaviour()
def large_requests_are_rounded_to_512_too() -> None:
    for size, rounded in ((4097, 4608), (9000, 9216), (MIB + 1, MIB + 512), (3 * MIB, 3 * MIB)):
        before = torch.cuda.memory_allocated()
        tensor = empty(size)
        assert torch.cuda.memory_allocated() - before == rounded, size
        del tensor


@behaviour()
def figures_go_up_and_down_with_tensors() -> None:
    start = torch.cuda.memory_allocated()
    tensors = []
    expected = 0
    for size in (512, 8 * KIB, 256 * KIB, MIB, 3 * MIB, 24 * MIB):
        tensors.append(empty(size))
        expected += size
        assert torch.cuda.memory_allocated() - start == expected
        assert torch.cuda.max_memory_allocated() - start == expected
        assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
        assert torch.cuda.max_memory_reserved() >= torch.cuda.memory_reserved()
    peak = torch.cuda.max_memory_allocated()
    while tensors:
        expected -= tensors.pop().numel()
        assert torch.cuda.memory_allocated() - start == expected
        assert torch.cuda.max_memory_allocated() == peak


@behaviour()
def counts_of_blocks_go_with_tensors() -> None:
    before = {key: stats(f"allocation.all.{key}") for key in _GAUGES}
    tensors = [empty(size) for size in (1, 600, 70_000, 2 * MIB)]
    assert stats("allocation.all.current") == before["current"] + 4
    assert stats("allocation.all.allocated") == before["allocated"] + 4
    del tensors
    assert stats("allocation.all.current") == before["current"]
    assert stats("allocation.all.freed") == before["freed"] + 4


@behaviour()
def blocks_up_to_a_mebibyte_count_as_small() -> None:
    tensors = [empty(size) for size in (100, 64 * KIB, MIB)] + [empty(MIB + 1)]
    for kind, small, large in (
        ("allocation", 3, 1),
        ("active", 3, 1),
        ("allocated_bytes", 512 + 64 * KIB + MIB, MIB + 512),
        ("active_bytes", 512 + 64 * KIB + MIB, MIB + 512),
        ("requested_bytes", 100 + 64 * KIB + MIB, MIB + 1),
    ):
        assert stats(f"{kind}.small_pool.current") == small, kind
        assert stats(f"{kind}.large_pool.current") == large, kind
        assert stats(f"{kind}.all.current") == small + large, kind
    del tensors


@behaviour()
def segments_count_as_small_or_large_by_what_they_hold() -> None:
    tensor = empty(1000)
    assert stats("segment.small_pool.current") == 1
    assert stats("reserved_bytes.small_pool.current") == 2 * MIB
    assert stats("segment.large_pool.current") == stats("reserved_bytes.large_pool.current") == 0
    del tensor


@segments_count_as_small_or_large_by_what_they_hold.differs(
    "blocks of every size share memory, which counts as large"
)
def _() -> None:
    tensor = empty(1000)
    assert stats("segment.large_pool.current") == stats("segment.all.current") == 1
    assert stats("reserved_bytes.large_pool.current") == torch.cuda.memory_reserved() == 2 * MIB
    assert stats("segment.small_pool.current") == stats("reserved_bytes.small_pool.current") == 0
    del tensor


@behaviour()
def reserved_is_what_the_card_gave() -> None:
    used, reserved = inside.card_used_bytes(), torch.cuda.memory_reserved()
    tensors = [empty(size) for size in (900, 20_000, 2 * MIB, 15 * MIB, 50 * MIB)]
    grown = torch.cuda.memory_reserved() - reserved
    assert abs(inside.card_used_bytes() - used - grown) <= inside.CARD_NOISE_BYTES
    del tensors[::2]
    assert torch.cuda.memory_reserved() - reserved == grown
    del tensors


@behaviour()
def segments_are_counted_as_the_snapshot_shows_them() -> None:
    tensors = [empty(size) for size in (900, 20_000, 2 * MIB, 15 * MIB, 50 * MIB)]
    assert stats("segment.all.current") == len(segments())
    assert stats("reserved_bytes.all.current") == sum(s["total_size"] for s in segments())
    del tensors


@segments_are_counted_as_the_snapshot_shows_them.differs(
    "handles are counted, of which a segment of the snapshot has as many as lie side by side"
)
def _() -> None:
    tensors = [empty(size) for size in (900, 20_000, 2 * MIB, 15 * MIB, 50 * MIB)]
    assert stats("segment.all.current") >= len(segments()) >= 1
    assert stats("reserved_bytes.all.current") == sum(s["total_size"] for s in segments())
    del tensors


@behaviour()
def peaks_are_reset_to_what_is_current() -> None:
    kept = empty(2 * MIB)
    tensor = empty(30 * MIB)
    del tensor
    assert torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() == 30 * MIB
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
    for kind in (
        "allocation",
        "segment",
        "active_bytes",
        "requested_bytes",
        "inactive_split_bytes",
    ):
        assert stats(f"{kind}.all.peak") == stats(f"{kind}.all.current"), kind
    del kept


@behaviour()
def accumulated_figures_are_reset_to_nothing() -> None:
    for _ in range(3):
        empty(5 * MIB)
    assert stats("allocated_bytes.all.allocated") >= 15 * MIB
    torch.cuda.reset_accumulated_memory_stats()
    for kind in ("allocation", "allocated_bytes", "active_bytes", "requested_bytes", "segment"):
        assert stats(f"{kind}.all.allocated") == stats(f"{kind}.all.freed") == 0, kind
    assert stats("num_alloc_retries") == stats("num_ooms") == 0
    empty(1000)
    assert stats("requested_bytes.all.allocated") == stats("requested_bytes.all.freed") == 1000


@behaviour()
def active_bytes_follow_a_small_tensor() -> None:
    before = stats("active_bytes.all.current")
    tensor = torch.empty(256, device="cuda")
    assert stats("active_bytes.all.current") == before + 1024
    assert stats("active_bytes.all.freed") == 0
    del tensor
    assert stats("active_bytes.all.current") == before
    assert stats("active_bytes.all.freed") == 1024


@behaviour()
def the_free_rest_of_a_split_segment_is_inactive_split() -> None:
    assert stats("reserved_bytes.all.current") == 0
    tensor = empty(4 * MIB)
    rest = torch.cuda.memory_reserved() - 4 * MIB
    assert stats("inactive_split_bytes.all.current") == rest
    assert stats("inactive_split.all.current") == (1 if rest else 0)
    del tensor


@behaviour()
def what_is_cached_costs_no_call_to_the_driver() -> None:
    empty(30 * MIB)
    made, freed = stats("num_device_alloc"), stats("num_device_free")
    assert made >= 1
    for _ in range(5):
        empty(30 * MIB)
    assert (stats("num_device_alloc"), stats("num_device_free")) == (made, freed)
    torch.cuda.empty_cache()
    assert stats("num_device_free") > freed


@behaviour()
def the_summary_is_a_table_of_the_figures() -> None:
    tensor = empty(5 * MIB)
    text = torch.cuda.memory_summary()
    for part in (
        "PyTorch CUDA memory summary, device ID 0",
        "CUDA OOMs: 0",
        "cudaMalloc retries: 0",
    ):
        assert part in text, text
    (row,) = [line for line in text.splitlines() if line.startswith("| Allocated memory")]
    assert "5120 KiB" in row or "5.00 MiB" in row or "5 MiB" in row, row
    assert "Non-releasable memory" in text
    assert "from large pool" in text
    assert "from large pool" not in torch.cuda.memory_summary(abbreviated=True)
    del tensor


@behaviour()
def the_old_names_still_answer_with_a_warning() -> None:
    tensor = empty(5 * MIB)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.cuda.memory_cached() == torch.cuda.memory_reserved()
        assert torch.cuda.max_memory_cached() == torch.cuda.max_memory_reserved()
        torch.cuda.reset_max_memory_allocated()
        torch.cuda.reset_max_memory_cached()
    assert len(caught) == 4, caught
    assert {warning.category for warning in caught} == {FutureWarning}
    del tensor


@behaviour()
def a_device_is_named_in_every_way() -> None:
    tensor = empty(5 * MIB)
    ways = (None, 0, "cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0))
    assert {torch.cuda.memory_allocated(way) for way in ways} == {torch.cuda.memory_allocated()}
    assert "Invalid device argument" in raised(RuntimeError, lambda: torch.cuda.memory_stats(99))
    assert "cuda" in raised(ValueError, lambda: torch.cuda.memory_stats("cpu"))
    del tensor


@behaviour(alone=True)
def before_the_card_is_used_there_are_no_figures() -> None:
    assert not torch.cuda.is_initialized()
    assert torch.cuda.memory_stats() == {}
    assert torch.cuda.memory_allocated() == torch.cuda.max_memory_reserved() == 0
    assert not torch.cuda.is_initialized()


@behaviour()
def figures_count_what_all_threads_hold() -> None:
    before = torch.cuda.memory_allocated()
    held, ready, done = [], threading.Barrier(5), threading.Event()

    def work() -> None:
        held.append([empty(size) for size in (512, 8 * KIB, 64 * KIB, 2 * MIB)])
        ready.wait()
        done.wait()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    assert torch.cuda.memory_allocated() - before == 4 * (512 + 72 * KIB + 2 * MIB)
    done.set()
    for thread in threads:
        thread.join()
    held.clear()
    assert torch.cuda.memory_allocated() == before


@behaviour(since=(2, 13))
def private_pools_have_figures_of_their_own() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = empty(3 * MIB)
    name = f"reserved_bytes_by_private_pools.{pool.id[0]}_{pool.id[1]}"
    reserved = sum(segment["total_size"] for segment in pool.snapshot())
    assert stats(f"{name}.all.current") == reserved >= 3 * MIB
    assert stats(f"{name}.all.peak") >= reserved
    del tensor, pool


@behaviour()
def pinned_memory_is_counted_apart() -> None:
    before = torch.cuda.memory_stats()
    tensor = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] >= MIB
    assert torch.cuda.memory_stats() == before
    del tensor


@behaviour()
def only_a_full_card_waits_for_all_streams() -> None:
    before = stats("num_sync_all_streams")
    for size in (100, 3 * MIB, 30 * MIB):
        empty(size)
    assert stats("num_sync_all_streams") == before
    torch.cuda.set_per_process_memory_fraction((64 * MIB) / torch.cuda.mem_get_info()[1])
    raised(torch.OutOfMemoryError, lambda: empty(128 * MIB))
    assert stats("num_sync_all_streams") >= before
