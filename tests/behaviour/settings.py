"""PYTORCH_CUDA_ALLOC_CONF: what PyTorch's settings mean, at the start and later."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import GIB, MIB, empty, filled, holds, raised, segments, stats, torch


def _set(text: str) -> None:
    torch._C._accelerator_setAllocatorSettings(text)


def _rounded(size: int) -> int:
    before = torch.cuda.memory_allocated()
    tensor = empty(size)
    grown = torch.cuda.memory_allocated() - before
    del tensor
    return int(grown)


_IDLE = "memory is carved by the page, whatever its size; a warning names the setting"


@behaviour()
def ill_formed_settings_are_refused() -> None:
    for text in (
        "foo:1,bar:2",
        "garbage_collection_threshold:1.2",
        "max_split_size_mb:2",
        "release_lock_on_cudamalloc:none",
        "pinned_use_cuda_host_register:none",
        "pinned_num_register_threads:none",
        "pinned_num_register_threads:1024",
        "expandable_segments:yes",
        "roundup_power2_divisions:3",
    ):
        raised(ValueError, partial(_set, text))


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "foo:1"}, alone=True)
def an_unknown_setting_is_an_error_when_the_card_is_first_used() -> None:
    assert "foo" in raised(ValueError, lambda: empty(100))


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.5"}, alone=True)
def the_fraction_is_a_setting() -> None:
    torch.cuda.init()
    assert abs(torch.cuda.get_per_process_memory_fraction() - 0.5) < 1e-6
    total = torch.cuda.mem_get_info()[1]
    raised(torch.OutOfMemoryError, lambda: empty(int(total * 0.6)))


@behaviour(env={"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.25"}, alone=True)
def the_newer_name_of_the_variable_is_read_too() -> None:
    torch.cuda.init()
    assert abs(torch.cuda.get_per_process_memory_fraction() - 0.25) < 1e-6


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:1.1"}, alone=True)
def a_fraction_above_one_is_an_error() -> None:
    assert "per_process_memory_fraction is invalid" in raised(ValueError, lambda: empty(100))


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, alone=True)
def expandable_segments_grow_in_place() -> None:
    tensors = [filled(5 * MIB, number) for number in range(12)]
    large = [segment for segment in segments() if segment["segment_type"] == "large"]
    assert len(large) == 1
    assert large[0]["is_expandable"]
    assert all(holds(tensor, number) for number, tensor in enumerate(tensors))
    before = torch.cuda.memory_reserved()
    del tensors[6:]
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before
    assert all(holds(tensor, number) for number, tensor in enumerate(tensors))


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"}, alone=True)
def sizes_are_rounded_to_divisions_of_a_power_of_two() -> None:
    assert _rounded(514 * MIB) == 640 * MIB
    assert _rounded(21 * 4 * MIB) == 96 * MIB


@sizes_are_rounded_to_divisions_of_a_power_of_two.differs(_IDLE)
def _() -> None:
    assert [_rounded(size * MIB) for size in (514, 84, 130)] == [514 * MIB, 84 * MIB, 130 * MIB]


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:[64:8,128:2,>:1]"}, alone=True)
def divisions_are_given_for_each_size() -> None:
    assert _rounded(84 * MIB) == 88 * MIB
    assert _rounded(130 * MIB) == 192 * MIB


@divisions_are_given_for_each_size.differs(_IDLE)
def _() -> None:
    assert [_rounded(size * MIB) for size in (514, 84, 130)] == [514 * MIB, 84 * MIB, 130 * MIB]


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"}, alone=True)
def rounding_leaves_requested_bytes_alone() -> None:
    tensor = empty(84 * MIB)
    assert stats("requested_bytes.all.current") == 84 * MIB
    assert stats("allocated_bytes.all.current") == 96 * MIB
    del tensor


@rounding_leaves_requested_bytes_alone.differs(_IDLE)
def _() -> None:
    tensor = empty(84 * MIB)
    assert stats("requested_bytes.all.current") == stats("allocated_bytes.all.current")
    del tensor


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:40"}, alone=True)
def large_blocks_are_not_split() -> None:
    tensor = empty(200 * MIB)
    del tensor
    tensor = empty(60 * MIB)
    assert torch.cuda.memory_reserved() == 260 * MIB
    assert stats("max_split_size") == 40 * MIB
    assert stats("oversize_allocations.current") == 1
    assert stats("oversize_segments.current") == 2
    del tensor


@large_blocks_are_not_split.differs(
    "memory moves in pieces, so that what is left of a large block is not lost; a warning says so"
)
def _() -> None:
    tensor = empty(200 * MIB)
    del tensor
    tensor = empty(60 * MIB)
    assert torch.cuda.memory_reserved() <= 204 * MIB
    del tensor


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.5"}, alone=True)
def memory_above_the_threshold_is_collected() -> None:
    torch.cuda.init()
    torch.cuda.set_per_process_memory_fraction(GIB / torch.cuda.mem_get_info()[1])
    for size in (200, 220, 240):
        empty(size * MIB)
    tensor = empty(260 * MIB)
    assert torch.cuda.memory_reserved() < (200 + 220 + 240 + 260) * MIB
    assert stats("num_ooms") == 0
    del tensor


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, alone=True)
def a_snapshot_names_the_settings() -> None:
    empty(100)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    assert settings["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert settings["max_split_size"] == 64 * MIB


@behaviour(alone=True)
def settings_change_at_run_time() -> None:
    assert _rounded(84 * MIB) == 84 * MIB
    _set("roundup_power2_divisions:4")
    assert _rounded(84 * MIB) == 96 * MIB
    torch.cuda.empty_cache()
    _set("max_split_size_mb:40")
    assert _rounded(84 * MIB) == 84 * MIB  # what is not named goes back to its default
    assert torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == 40 * MIB


@settings_change_at_run_time.differs("it has options of its own, which hold for the process")
def _() -> None:
    _set("roundup_power2_divisions:4")
    assert _rounded(84 * MIB) == 84 * MIB


@behaviour()
def the_backend_is_native() -> None:
    assert torch.cuda.get_allocator_backend() == "native"


@the_backend_is_native.differs("it says who serves the memory")
def _() -> None:
    assert torch.cuda.get_allocator_backend() == "gpumem_alloc"


@behaviour(env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, alone=True)
def the_variable_against_caching_is_obeyed() -> None:
    tensor: Any = filled(30 * MIB, 2)
    assert holds(tensor, 2)
    free = torch.cuda.mem_get_info()[0]
    del tensor
    assert torch.cuda.mem_get_info()[0] >= free + 30 * MIB


@behaviour(env={"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, alone=True)
def the_backend_may_be_named() -> None:
    assert holds(filled(MIB, 3), 3)
    assert torch.cuda.memory_snapshot() != []


@behaviour(alone=True)
def the_backend_may_be_named_again_at_run_time() -> None:
    empty(100)
    try:
        _set("backend:native")
    except RuntimeError as error:
        raise AssertionError(str(error)) from error


@the_backend_may_be_named_again_at_run_time.differs(
    "PyTorch's parser wants the name of the current allocator there, which is ours"
)
def _() -> None:
    assert "gpumem_alloc" in raised(RuntimeError, partial(_set, "backend:native"))
    assert holds(filled(MIB, 3), 3)
