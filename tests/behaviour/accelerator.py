"""torch.accelerator.memory, the names that do not say CUDA."""

from __future__ import annotations

from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import MIB, empty, stats, torch, version


def _memory() -> Any:
    return torch.accelerator.memory


@behaviour()
def its_figures_are_those_of_cuda() -> None:
    tensors = [empty(1000), empty(5 * MIB)]
    assert _memory().memory_allocated() == torch.cuda.memory_allocated() > 0
    assert _memory().memory_reserved() == torch.cuda.memory_reserved() > 0
    assert _memory().max_memory_allocated() == torch.cuda.max_memory_allocated()
    assert _memory().max_memory_reserved() == torch.cuda.max_memory_reserved()
    tensors.clear()


@behaviour()
def its_statistics_have_the_same_names_and_values() -> None:
    tensors = [empty(1000), empty(5 * MIB)]
    ours, cudas = _memory().memory_stats(), torch.cuda.memory_stats()
    apart = set(ours) ^ set(cudas)
    newer = ("num_oom_rejections", "reserved_bytes_by_private")
    assert all(name.startswith(newer) for name in apart)
    assert {name: cudas[name] for name in ours if name in cudas} == {
        name: value for name, value in ours.items() if name in cudas
    }
    tensors.clear()


@behaviour()
def it_empties_the_cache() -> None:
    empty(30 * MIB)
    _memory().empty_cache()
    assert torch.cuda.memory_reserved() == _memory().memory_reserved() == 0


@behaviour()
def it_resets_peaks_and_sums() -> None:
    kept = empty(2 * MIB)
    empty(30 * MIB)
    assert _memory().max_memory_allocated() >= 32 * MIB
    _memory().reset_peak_memory_stats()
    assert _memory().max_memory_allocated() == torch.cuda.memory_allocated()
    _memory().reset_accumulated_memory_stats()
    assert stats("allocated_bytes.all.allocated") == 0
    del kept


@behaviour()
def it_tells_what_is_free() -> None:
    tensor = empty(64 * MIB)
    assert _memory().get_memory_info() == torch.cuda.mem_get_info()
    del tensor


@behaviour()
def a_small_tensor_shows_in_its_figures() -> None:
    before = _memory().memory_stats()["active_bytes.all.current"]
    tensor = torch.empty(256, device="cuda")
    figures = _memory().memory_stats()
    assert figures["active_bytes.all.current"] == before + 1024
    assert figures["active_bytes.all.freed"] == 0
    del tensor
    _memory().empty_cache()
    assert _memory().memory_stats()["active_bytes.all.freed"] == 1024


@behaviour(since=(2, 14))
def its_snapshot_is_cudas() -> None:
    tensor = empty(5 * MIB)
    assert _memory()._snapshot()["segments"] == torch.cuda.memory_snapshot()
    del tensor


@behaviour(since=(2, 12))
def its_graph_pools_are_numbered_with_cudas() -> None:
    one = torch.cuda.graph_pool_handle()
    make = getattr(torch.accelerator, "generate_graph_pool_handle", None)
    if make is None:
        assert version() < (2, 15)
        return
    assert make()[1] > one[1]


@behaviour(alone=True)
def before_the_card_is_used_it_has_no_figures() -> None:
    assert _memory().memory_allocated() == 0
    assert dict(_memory().memory_stats()) == {}
    _memory().empty_cache()
    assert not torch.cuda.is_initialized()
