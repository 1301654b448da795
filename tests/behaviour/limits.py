"""Limits, running out of memory, and what a program may do about it."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import GIB, MIB, caught, empty, filled, holds, raised, stats, torch

_TOO_MUCH = 1 << 50


def _allow(size: int) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(size / torch.cuda.mem_get_info()[1])


@behaviour()
def the_fraction_is_read_back() -> None:
    for fraction in (1.0, 0.0, 0.5, 0.123, 0.9):
        torch.cuda.set_per_process_memory_fraction(fraction)
        assert abs(torch.cuda.get_per_process_memory_fraction() - fraction) < 1e-6
        assert abs(torch.cuda.get_per_process_memory_fraction(0) - fraction) < 1e-6


@behaviour()
def wrong_fractions_are_refused() -> None:
    set_fraction = torch.cuda.set_per_process_memory_fraction
    assert "Invalid type" in raised(TypeError, lambda: set_fraction(1))
    assert "Invalid fraction value" in raised(ValueError, lambda: set_fraction(-0.1))
    assert "Invalid fraction value" in raised(ValueError, lambda: set_fraction(2.0))


@behaviour()
def the_fraction_limits_what_is_reserved() -> None:
    _allow(GIB)
    tensor = empty(600 * MIB)
    text = raised(torch.OutOfMemoryError, lambda: empty(600 * MIB))
    assert "1.00 GiB" in text or "1024.00 MiB" in text, text
    assert torch.cuda.memory_reserved() <= GIB
    del tensor
    tensor = filled(900 * MIB, 3)
    assert holds(tensor, 3)
    del tensor


@behaviour()
def just_below_the_fraction_fits() -> None:
    _allow(GIB)
    assert empty(1000 * MIB).numel() == 1000 * MIB
    raised(torch.OutOfMemoryError, lambda: empty(1026 * MIB))


@behaviour()
def raising_the_fraction_lets_more_through() -> None:
    _allow(512 * MIB)
    raised(torch.OutOfMemoryError, lambda: empty(600 * MIB))
    _allow(GIB)
    assert empty(600 * MIB).numel() == 600 * MIB


@behaviour()
def the_error_is_pytorchs_and_tells_the_numbers() -> None:
    _allow(GIB)
    kept = empty(300 * MIB)
    error = caught(torch.cuda.OutOfMemoryError, lambda: empty(20 * GIB))
    assert type(error) is torch.OutOfMemoryError
    assert isinstance(error, RuntimeError)
    (text,) = error.args
    start = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of"
    assert text.startswith(start)
    for part in ("is free", "allowed", "300.00 MiB is allocated"):
        assert part in text, (part, text)
    del kept


@behaviour()
def the_error_advises_a_setting() -> None:
    _allow(GIB)
    text = raised(torch.OutOfMemoryError, lambda: empty(20 * GIB))
    assert "reserved by PyTorch but unallocated" in text
    assert "expandable_segments:True" in text


@the_error_advises_a_setting.differs(
    "it tells the largest free piece and the cause, and advises nothing that is on already"
)
def _() -> None:
    _allow(GIB)
    text = raised(torch.OutOfMemoryError, lambda: empty(20 * GIB))
    assert "largest piece" in text
    assert "exceed the limit" in text
    assert "expandable_segments" not in text


@behaviour()
def an_absurd_request_is_refused() -> None:
    text = raised(torch.OutOfMemoryError, lambda: empty(1 << 61))
    assert text.startswith("CUDA out of memory. Tried to allocate more than 1EB memory")


@behaviour()
def everything_works_after_the_error() -> None:
    kept = filled(1024, 7)
    for _ in range(3):
        raised(torch.OutOfMemoryError, lambda: empty(_TOO_MUCH))
    assert holds(kept, 7)
    more = filled(30 * MIB, 8)
    assert holds(more, 8)
    del kept, more


@behaviour()
def errors_and_retries_are_counted() -> None:
    _allow(GIB)
    ooms, retries = stats("num_ooms"), stats("num_alloc_retries")
    raised(torch.OutOfMemoryError, lambda: empty(20 * GIB))
    raised(torch.OutOfMemoryError, lambda: empty(20 * GIB))
    assert stats("num_ooms") == ooms + 2
    assert stats("num_alloc_retries") >= retries
    torch.cuda.reset_accumulated_memory_stats()
    assert stats("num_ooms") == stats("num_alloc_retries") == 0


@behaviour()
def cached_memory_is_given_up_before_the_error() -> None:
    _allow(GIB)
    for size in (300, 200, 400):
        empty(size * MIB)
    tensor = filled(900 * MIB, 4)  # fits only once what is cached has gone
    assert holds(tensor, 4)
    assert stats("num_ooms") == 0
    del tensor


@behaviour()
def a_retry_that_gave_memory_back_is_counted() -> None:
    _allow(GIB)
    kept = [empty(300 * MIB), empty(300 * MIB), empty(300 * MIB)]
    del kept[1]
    retries = stats("num_alloc_retries")
    kept.append(empty(350 * MIB))
    assert stats("num_alloc_retries") == retries + 1
    assert stats("num_ooms") == 0
    kept.clear()


@a_retry_that_gave_memory_back_is_counted.differs(
    "idle memory moves to where it is needed, so that nothing is given back and asked for again"
)
def _() -> None:
    _allow(GIB)
    kept = [empty(300 * MIB), empty(300 * MIB), empty(300 * MIB)]
    del kept[1]
    freed = stats("num_device_free")
    kept.append(empty(350 * MIB))
    assert stats("num_alloc_retries") == stats("num_ooms") == 0
    assert stats("num_device_free") - freed <= 8
    kept.clear()


@behaviour()
def half_the_memory_twice_fails_then_fits() -> None:
    _allow(GIB)
    a = empty(520 * MIB)
    raised(torch.OutOfMemoryError, lambda: empty(520 * MIB))
    del a
    assert empty(520 * MIB).numel() == 520 * MIB


@behaviour(env={"RIG_CAPACITY_MB": "1024"})
def a_full_card_is_the_same_error() -> None:
    total = torch.cuda.mem_get_info()[1]
    text = raised(torch.OutOfMemoryError, lambda: empty(total + GIB))
    assert text.startswith("CUDA out of memory. Tried to allocate")
    assert "total capacity" in text
    assert "allowed" not in text
    tensor = empty(100 * MIB)
    del tensor


@behaviour(alone=True)  # an observer cannot be taken away
def observers_are_told_before_the_error() -> None:
    seen: list[tuple[int, ...]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
    raised(torch.OutOfMemoryError, lambda: empty(_TOO_MUCH))
    ((device, requested, total, free),) = seen
    assert (device, requested) == (0, _TOO_MUCH)
    assert total == torch.cuda.mem_get_info()[1]
    assert 0 < free <= total


@behaviour(alone=True)
def an_observer_may_look_at_everything() -> None:
    seen: list[Any] = []

    def look(*_: int) -> None:
        seen.append(torch.cuda.memory._snapshot())
        seen.append(torch.cuda.memory_stats())
        torch.cuda.empty_cache()
        seen.append(holds(filled(1000, 2), 2))

    torch._C._cuda_attach_out_of_memory_observer(look)
    raised(torch.OutOfMemoryError, lambda: empty(_TOO_MUCH))
    assert len(seen) == 3
    assert seen[2]


@behaviour(alone=True)
def every_observer_is_told_each_time() -> None:
    seen: list[str] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: seen.append("one"))
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: seen.append("two"))
    for _ in range(2):
        raised(torch.OutOfMemoryError, lambda: empty(_TOO_MUCH))
    assert seen == ["one", "two"] * 2


@behaviour()
def batch_size_finders_know_the_error() -> None:
    def accelerate_knows(error: BaseException) -> bool:  # should_reduce_batch_size
        (text,) = error.args
        return isinstance(error, RuntimeError) and "CUDA out of memory." in text

    def lightning_knows(error: BaseException) -> bool:  # is_cuda_out_of_memory
        (text,) = error.args
        return isinstance(error, RuntimeError) and "CUDA" in text and "out of memory" in text

    _allow(GIB)
    for size in (4 * GIB, 2 * GIB):
        error = caught(Exception, partial(empty, size))
        assert accelerate_knows(error)
        assert lightning_knows(error)
    assert empty(GIB // 2).numel() == GIB // 2


@behaviour()
def a_failed_request_leaves_no_trace_in_the_figures() -> None:
    _allow(GIB)
    names = ("allocation.all", "allocated_bytes.all", "requested_bytes.all", "active_bytes.all")
    before = {name: stats(f"{name}.allocated") for name in names}
    raised(torch.OutOfMemoryError, lambda: empty(20 * GIB))
    assert {name: stats(f"{name}.allocated") for name in names} == before
    assert torch.cuda.max_memory_allocated() < GIB


@behaviour(gpu=True)
def kernels_run_after_the_error() -> None:
    tensor = torch.zeros(1024, device="cuda")
    raised(torch.OutOfMemoryError, lambda: empty(_TOO_MUCH))
    tensor.fill_(1)
    assert bool((tensor == 1).all())
    assert float((tensor @ tensor).sum()) == 1024
