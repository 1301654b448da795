"""Memory asked for without a tensor, and the cache turned off."""

from __future__ import annotations

import ctypes
from functools import partial

from tests.behaviour.table import behaviour
from tests.behaviour.tools import KIB, MIB, empty, filled, holds, raised, stats, torch


def _stream() -> int:
    return int(torch._C._cuda_getCurrentRawStream(torch.cuda.current_device()))


def _enabled() -> bool:
    ask = getattr(torch._C, "_cuda_cudaCachingAllocator_is_enabled", None)  # since torch 2.12
    return bool(ask()) if ask is not None else _counts()


def _counts() -> bool:
    """Whether an allocation shows in the statistics."""
    before = torch.cuda.memory_allocated()
    tensor = empty(MIB)
    return bool(torch.cuda.memory_allocated() == before + tensor.numel())


@behaviour()
def memory_for_a_library_is_counted_like_a_tensors() -> None:
    before = torch.cuda.memory_allocated()
    place = torch.cuda.caching_allocator_alloc(1000)
    assert torch.cuda.memory_allocated() == before + 1024
    torch.cuda.caching_allocator_delete(place)
    assert torch.cuda.memory_allocated() == before


@behaviour()
def it_is_asked_for_on_a_stream_and_a_device() -> None:
    side = torch.cuda.Stream()
    places = [
        torch.cuda.caching_allocator_alloc(3 * MIB, device=0, stream=side),
        torch.cuda.caching_allocator_alloc(3 * MIB, device="cuda:0", stream=side.cuda_stream),
        torch.cuda.caching_allocator_alloc(3 * MIB, stream=None),
    ]
    assert len(set(places)) == 3
    streams = {
        block["address"]: segment["stream"]
        for segment in torch.cuda.memory_snapshot()
        for block in segment["blocks"]
    }
    assert [streams[place] for place in places] == [side.cuda_stream, side.cuda_stream, 0]
    for place in places:
        torch.cuda.caching_allocator_delete(place)


@behaviour()
def a_large_workspace_comes_and_goes() -> None:
    made = []
    for _ in range(3):
        place = torch.cuda.caching_allocator_alloc(256 * MIB)
        torch.cuda.caching_allocator_delete(place)
        made.append(stats("num_device_alloc"))
    assert made[0] == made[1] == made[2]


@behaviour()
def deleting_twice_or_what_is_not_ours_is_an_error() -> None:
    place = torch.cuda.caching_allocator_alloc(1000)
    torch.cuda.caching_allocator_delete(place)
    delete = torch.cuda.caching_allocator_delete
    for wrong in (place, 0x123456789000):
        assert "invalid device pointer" in raised(RuntimeError, partial(delete, wrong))
    assert holds(filled(1000, 1), 1)


@deleting_twice_or_what_is_not_ours_is_an_error.differs(
    "the error says which of the two it is instead of one text for both"
)
def _() -> None:
    place = torch.cuda.caching_allocator_alloc(1000)
    torch.cuda.caching_allocator_delete(place)
    delete = torch.cuda.caching_allocator_delete
    text = raised(RuntimeError, partial(delete, place))
    assert f"{place:#x}, where no tensor is allocated (freed twice?).\n" in text
    assert "Look for two owners" in text
    text = raised(RuntimeError, partial(delete, 0x123456789000))
    assert "0x123456789000 was not allocated by gpumem_alloc.\n" in text
    assert "Free it once" in text
    assert holds(filled(1000, 1), 1)


@behaviour()
def raw_memory_is_allocated_by_the_stream() -> None:
    before = stats("requested_bytes.all.current")
    place = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, _stream())
    assert stats("requested_bytes.all.current") == before + MIB
    torch._C._cuda_cudaCachingAllocator_raw_delete(place)
    assert stats("requested_bytes.all.current") == before


@behaviour()
def memory_of_no_bytes_is_null() -> None:
    place = torch._C._cuda_cudaCachingAllocator_raw_alloc(0, _stream())
    assert place == 0
    torch._C._cuda_cudaCachingAllocator_raw_delete(place)


@behaviour(alone=True)
def without_the_cache_nothing_is_counted_or_kept() -> None:
    empty(100)
    torch.cuda.caching_allocator_enable(False)
    assert not _enabled()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    tensor = filled(30 * MIB, 3)
    assert holds(tensor, 3)
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    free = torch.cuda.mem_get_info()[0]
    del tensor
    assert torch.cuda.mem_get_info()[0] >= free + 30 * MIB
    place = torch._C._cuda_cudaCachingAllocator_raw_alloc(MIB, _stream())
    assert torch.cuda.memory_allocated() == before[0]
    torch._C._cuda_cudaCachingAllocator_raw_delete(place)
    torch.cuda.caching_allocator_enable(True)
    assert _enabled()
    tensor = empty(30 * MIB)
    assert torch.cuda.memory_allocated() == before[0] + tensor.numel()


@behaviour(alone=True)
def the_cache_is_turned_off_for_a_while() -> None:
    torch.cuda.init()
    if hasattr(torch.cuda.memory, "caching_allocator_disabled"):
        with torch.cuda.memory.caching_allocator_disabled():
            assert not _enabled()
            tensor = empty(MIB)
    else:
        torch.cuda.caching_allocator_enable(False)
        tensor = empty(MIB)
        torch.cuda.caching_allocator_enable(True)
    assert _enabled()
    assert torch.cuda.memory_allocated() == 0
    del tensor
    assert torch.cuda.memory_allocated() == 0


@behaviour()
def a_tensor_over_foreign_memory_is_not_freed_by_us() -> None:
    base = filled(64 * KIB, 5)
    before = torch.cuda.memory_allocated()
    storage = torch._C._construct_storage_from_data_pointer(
        base.data_ptr(), torch.device("cuda", 0), 1000
    )
    tensor = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
    assert torch.cuda.memory_allocated() == before
    assert holds(tensor, 5)
    tensor.record_stream(torch.cuda.Stream())
    del tensor, storage
    assert torch.cuda.memory_allocated() == before
    assert holds(base, 5)


@behaviour()
def a_tensor_goes_through_dlpack_and_back() -> None:
    tensor = filled(64 * KIB, 5)
    before = torch.cuda.memory_allocated()
    other = torch.from_dlpack(tensor)
    assert other.data_ptr() == tensor.data_ptr()
    del tensor
    assert torch.cuda.memory_allocated() == before
    assert holds(other, 5)
    del other
    assert torch.cuda.memory_allocated() == before - 64 * KIB


@behaviour()
def the_cuda_array_interface_names_the_memory() -> None:
    tensor = filled(1000, 5)
    about = tensor.__cuda_array_interface__
    assert about["data"][0] == tensor.data_ptr()
    assert about["shape"] == (1000,)
    assert ctypes.sizeof(ctypes.c_void_p) == 8


@behaviour(gpu=True)
def cudnn_tunes_itself() -> None:
    torch.backends.cudnn.benchmark = True
    try:
        model = torch.nn.Conv2d(3, 16, 3).cuda()
        for size in (32, 64, 33):
            model(torch.randn(4, 3, size, size, device="cuda")).sum().backward()
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            model(torch.randn(4, 3, 65, 65, device="cuda")).sum().backward()
        torch.cuda.synchronize()
        assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = False


@behaviour(gpu=True)
def an_lstm_with_dropout_trains_and_is_captured() -> None:
    model = torch.nn.LSTM(64, 64, 2, dropout=0.5).cuda()
    data = torch.ones(10, 4, 64, device="cuda")
    model(data)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        model(data)
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    model(data)
