"""Two cards: each has memory, figures, limits and pools of its own."""

from __future__ import annotations

from typing import Any

from tests.behaviour.table import Check, behaviour
from tests.behaviour.tools import GIB, MIB, holds, raised, torch


def _two_cards(check: Check) -> Any:
    return behaviour(rig=True, env={"RIG_DEVICES": "2"})(check)


def _on(device: int, size: int, value: int = 0) -> Any:
    return torch.full((size,), value, dtype=torch.uint8).to(f"cuda:{device}")


def _settle_both() -> None:
    for device in (0, 1):
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.empty_cache()


@_two_cards
def figures_are_of_one_device() -> None:
    before = [torch.cuda.memory_allocated(device) for device in (0, 1)]
    tensor = _on(1, 3 * MIB)
    assert torch.cuda.memory_allocated(0) == before[0]
    assert torch.cuda.memory_allocated(1) == before[1] + 3 * MIB
    with torch.cuda.device(1):
        assert torch.cuda.memory_allocated() == before[1] + 3 * MIB
    del tensor
    assert torch.cuda.memory_allocated(1) == before[1]


@_two_cards
def peaks_are_reset_on_one_device() -> None:
    _settle_both()
    for device in (0, 1):
        _on(device, 5 * MIB)
    torch.cuda.reset_peak_memory_stats(1)
    assert torch.cuda.max_memory_allocated(0) >= 5 * MIB
    assert torch.cuda.max_memory_allocated(1) < 5 * MIB


@_two_cards
def empty_cache_empties_all_devices() -> None:
    _settle_both()
    for device in (0, 1):
        _on(device, 30 * MIB)
    assert min(torch.cuda.memory_reserved(device) for device in (0, 1)) >= 30 * MIB
    torch.cuda.empty_cache()
    assert [torch.cuda.memory_reserved(device) for device in (0, 1)] == [0, 0]


@_two_cards
def a_limit_is_of_one_device() -> None:
    total = torch.cuda.mem_get_info(1)[1]
    torch.cuda.set_per_process_memory_fraction(GIB / total, 1)
    try:
        text = raised(torch.OutOfMemoryError, lambda: torch.empty(2 * GIB, device="cuda:1"))
        assert "GPU 1 has a total capacity" in text
        assert torch.empty(2 * GIB, dtype=torch.uint8, device="cuda:0").numel() == 2 * GIB
        assert torch.cuda.get_per_process_memory_fraction(0) == 1.0
        assert torch.cuda.get_per_process_memory_fraction(1) < 1.0
    finally:
        _settle_both()


@_two_cards
def segments_name_their_device() -> None:
    tensors = [_on(device, 3 * MIB, device) for device in (0, 1)]
    found = {}
    for segment in torch.cuda.memory_snapshot():
        for device, tensor in enumerate(tensors):
            if 0 <= tensor.data_ptr() - segment["address"] < segment["total_size"]:
                found[device] = segment["device"]
    assert found == {0: 0, 1: 1}
    assert [holds(tensor, value) for value, tensor in enumerate(tensors)] == [True, True]


@_two_cards
def history_is_kept_for_each_device() -> None:
    torch.cuda.memory._record_memory_history(context=None)
    tensors = [torch.empty(16 * (1 + n), dtype=torch.uint8, device=f"cuda:{n}") for n in (0, 1)]
    traces = torch.cuda.memory._snapshot()["device_traces"]
    sizes = [[e["size"] for e in entries if e["action"] == "alloc"] for entries in traces]
    assert sizes == [[16], [32]]
    del tensors


@_two_cards
def tensors_are_copied_between_devices() -> None:
    there = _on(1, 5 * MIB, 7)
    here = there.to("cuda:0")
    assert here.device.index == 0
    assert holds(here, 7)
    here.copy_(_on(1, 5 * MIB, 8))
    assert holds(here, 8)
    back = here.to("cuda:1", non_blocking=True)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    assert holds(back, 8)


@_two_cards
def a_pool_is_used_on_one_device() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool, device=0):
        here = _on(0, 3 * MIB)
        there = _on(1, 3 * MIB)
    assert {segment["device"] for segment in pool.snapshot()} == {0}
    del here, there


@_two_cards
def memory_is_asked_for_on_a_device_that_is_not_current() -> None:
    assert torch.cuda.current_device() == 0
    before = torch.cuda.memory_allocated(1)
    place = torch.cuda.caching_allocator_alloc(3 * MIB, device=1)
    assert torch.cuda.memory_allocated(1) == before + 3 * MIB
    torch.cuda.caching_allocator_delete(place)
    assert torch.cuda.memory_allocated(1) == before
