"""Two cards: each has memory, figures, limits and pools of its own."""

from __future__ import annotations

from typing import Any

from tests.behaviour.table import Check, behaviour
from tests.behaviour.tools import GIB, MIB, holds, raised, torch
from tests.rig import inside


def _two_cards(check: Check) -> Any:
    return behaviour(cards=2)(check)


def _two_gpus(check: Check) -> Any:
    return behaviour(gpu=True, cards=2)(check)


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


@_two_cards
def memory_is_freed_while_another_device_is_current() -> None:
    before = [torch.cuda.memory_allocated(device) for device in (0, 1)]
    tensors = [_on(device, size, 5) for device in (0, 1) for size in (700, 3 * MIB)]
    with torch.cuda.device(1):
        del tensors[:2]
    assert torch.cuda.memory_allocated(0) == before[0]
    assert all(holds(tensor, 5) for tensor in tensors)
    del tensors
    assert torch.cuda.memory_allocated(1) == before[1]


@_two_cards
def memory_waits_for_a_recorded_stream_of_another_device() -> None:
    there = torch.cuda.Stream(1)
    tensor = _on(0, 5 * MIB, 1)
    place = tensor.data_ptr()
    inside.hold(there)
    tensor.record_stream(there)
    del tensor
    other = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:0")
    assert other.data_ptr() != place
    inside.finish(there)
    again = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:0")
    assert again.data_ptr() == place


@_two_cards
def a_stream_belongs_to_one_device() -> None:
    tensors = []
    for device in (0, 1):
        with torch.cuda.stream(torch.cuda.Stream(device)):
            tensors.append(torch.empty(3 * MIB, dtype=torch.uint8, device=f"cuda:{device}"))
            tensors.append(torch.empty(3 * MIB, dtype=torch.uint8, device=f"cuda:{1 - device}"))
    assert [tensor.device.index for tensor in tensors] == [0, 1, 1, 0]
    assert len({tensor.data_ptr() for tensor in tensors}) == 4


@_two_gpus
def parts_and_other_types_are_copied_between_devices() -> None:
    there = torch.arange(60_000, device="cuda:1").reshape(200, 300)
    for source in (there, there[:, ::7], there.t(), there[3:4].expand(50, 300), there[5]):
        for kind in (torch.int64, torch.float32):
            here = source.to("cuda:0", kind)
            assert here.device.index == 0
            assert torch.equal(here.cpu(), source.cpu().to(kind))
    column = torch.zeros(200, 300, device="cuda:0")
    column[:, 4] = there[:, 5]
    assert torch.equal(column[:, 4].cpu(), there[:, 5].cpu().float())
    complex_there = torch.randn(50, 2, device="cuda:1", dtype=torch.complex64).conj()
    assert torch.equal(complex_there.to("cuda:0").cpu(), complex_there.cpu())


@_two_gpus
def a_copy_waits_for_what_made_its_source() -> None:
    for _ in range(5):
        there = torch.zeros(8 * MIB, device="cuda:1")
        with torch.cuda.device(1):
            torch.cuda._sleep(20_000_000)
            there.fill_(7)
        here = there.to("cuda:0", non_blocking=True)
        with torch.cuda.device(1):
            there.fill_(9)
        assert bool((here == 7).all())


@_two_gpus
def a_model_runs_on_both_devices_in_one_process() -> None:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)]
    alone = torch.nn.Sequential(*layers).to("cuda:0", torch.float64)
    inputs = torch.randn(64, 256, device="cuda:0", dtype=torch.float64)
    losses = []
    for model in (alone, torch.nn.DataParallel(alone, device_ids=[0, 1])):
        alone.zero_grad(set_to_none=True)
        loss = model(inputs).square().mean()
        loss.backward()
        losses.append((loss.item(), [each.grad.clone() for each in alone.parameters()]))
    (first, gradients), (second, others) = losses
    assert abs(first - second) < 1e-12
    assert all(torch.allclose(a, b) for a, b in zip(gradients, others, strict=True))
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.peak"] > 256 * 256 * 8


@_two_gpus
def devices_reach_memory_that_was_there_before_they_were_used_together() -> None:
    early = [torch.full((3 * MIB,), 1 + n, dtype=torch.uint8, device=f"cuda:{n}") for n in (0, 1)]
    assert torch.cuda.can_device_access_peer(0, 1)
    # A copy that is not dense is a kernel that reads the other device's memory.
    assert bool((early[1][::3].to("cuda:0") == 2).all())
    assert bool((early[0][::3].to("cuda:1") == 1).all())
