"""Streams: whose memory is whose, and record_stream."""

from __future__ import annotations

from tests.behaviour.table import behaviour
from tests.behaviour.tools import (
    GIB,
    MIB,
    empty,
    filled,
    holds,
    segment_of,
    segments,
    stats,
    torch,
)  # fmt: skip
from tests.rig import inside


@behaviour()
def memory_in_use_on_another_stream_is_not_handed_out() -> None:
    side = torch.cuda.Stream()
    tensor = empty(30 * MIB)
    place = tensor.data_ptr()
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    others = [empty(30 * MIB) for _ in range(3)]
    assert place not in [other.data_ptr() for other in others]
    inside.finish(side)


@behaviour()
def it_is_handed_out_once_that_stream_is_done() -> None:
    side = torch.cuda.Stream()
    small = empty(100)
    tensor = empty(30 * MIB)
    place = tensor.data_ptr()
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    inside.finish(side)
    empty(100)  # looks at what is done
    assert empty(30 * MIB).data_ptr() == place
    del small


@behaviour()
def pending_memory_is_active_but_not_allocated() -> None:
    allocated, active = torch.cuda.memory_allocated(), stats("active_bytes.all.current")
    side = torch.cuda.Stream()
    tensor = empty(30 * MIB)
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    assert torch.cuda.memory_allocated() == allocated
    assert stats("active_bytes.all.current") == active + 30 * MIB
    inside.finish(side)
    empty(100)
    assert stats("active_bytes.all.current") == active


@behaviour()
def small_blocks_wait_too() -> None:
    side = torch.cuda.Stream()
    tensor = empty(300)
    place = tensor.data_ptr()
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    others = [empty(300) for _ in range(5)]
    assert place not in [other.data_ptr() for other in others]
    inside.finish(side)


@behaviour()
def a_view_records_for_its_whole_storage() -> None:
    side = torch.cuda.Stream()
    base = empty(30 * MIB)
    place = base.data_ptr()
    view = base[10 * MIB : 10 * MIB + 7]
    assert view.storage_offset() > 0
    inside.hold(side)
    view.record_stream(side)
    del base, view
    others = [empty(30 * MIB) for _ in range(2)]
    assert place not in [other.data_ptr() for other in others]
    inside.finish(side)


@behaviour()
def every_recorded_stream_is_waited_for() -> None:
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    small, tensor = empty(100), empty(30 * MIB)
    place = tensor.data_ptr()
    inside.hold(one)
    inside.hold(two)
    tensor.record_stream(one)
    tensor.record_stream(two)
    del tensor
    inside.finish(one)
    empty(100)
    other = empty(30 * MIB)
    if not two.query():  # on a real card it may be done by now
        assert other.data_ptr() != place
    if other.data_ptr() == place:
        del other
    inside.finish(two)
    empty(100)
    assert empty(30 * MIB).data_ptr() == place
    del small


@behaviour()
def its_own_stream_need_not_be_recorded() -> None:
    tensor = empty(30 * MIB)
    place = tensor.data_ptr()
    tensor.record_stream(torch.cuda.current_stream())
    del tensor
    assert empty(30 * MIB).data_ptr() == place


@behaviour()
def recording_for_no_bytes_or_a_host_tensor_does_nothing() -> None:
    side = torch.cuda.Stream()
    empty(0).record_stream(side)
    before = stats("active_bytes.all.current")
    tensor = empty(30 * MIB)
    del tensor
    assert stats("active_bytes.all.current") == before


@behaviour()
def a_stream_uses_its_own_memory_again() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = empty(30 * MIB)
        place = tensor.data_ptr()
        del tensor
        assert empty(30 * MIB).data_ptr() == place


@behaviour()
def cached_memory_of_a_busy_stream_is_not_handed_to_another() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = filled(30 * MIB, 5)
    place = tensor.data_ptr()
    side.synchronize()
    inside.hold(side)
    del tensor
    other = empty(30 * MIB)
    assert other.data_ptr() != place
    inside.finish(side)


@behaviour()
def streams_have_segments_of_their_own() -> None:
    side = torch.cuda.Stream()
    here = empty(3 * MIB)
    with torch.cuda.stream(side):
        there = empty(3 * MIB)
    assert segment_of(here)["address"] != segment_of(there)["address"]
    side.synchronize()


@behaviour()
def a_tensor_freed_under_another_stream_stays_its_own_streams() -> None:
    side = torch.cuda.Stream()
    tensor = empty(30 * MIB)
    place = tensor.data_ptr()
    with torch.cuda.stream(side):
        del tensor
    assert empty(30 * MIB).data_ptr() == place


@behaviour()
def contents_survive_on_many_streams() -> None:
    streams = [torch.cuda.Stream() for _ in range(4)]
    for round_number in range(5):
        tensors = []
        for number, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                tensors.append(filled(5 * MIB, 10 * round_number + number))
        torch.cuda.synchronize()
        for number, tensor in enumerate(tensors):
            assert holds(tensor, 10 * round_number + number)
            tensor.record_stream(streams[(number + 1) % 4])


@behaviour()
def a_full_card_waits_for_pending_memory() -> None:
    torch.cuda.set_per_process_memory_fraction(GIB / torch.cuda.mem_get_info()[1])
    side = torch.cuda.Stream()
    tensor = empty(600 * MIB)
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    assert empty(600 * MIB).numel() == 600 * MIB  # no error: the stream is waited for
    assert stats("num_ooms") == 0
    inside.finish(side)


@behaviour()
def giving_the_cache_back_waits_for_pending_memory() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    side = torch.cuda.Stream()
    tensor = empty(64 * MIB)
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before
    assert segments() == [] or before > 0
    inside.finish(side)


@giving_the_cache_back_waits_for_pending_memory.differs(
    "empty_cache() does not make the host wait for other streams; what they use goes back later"
)
def _() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    side = torch.cuda.Stream()
    tensor = empty(64 * MIB)
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    torch.cuda.empty_cache()
    if not side.query():
        assert torch.cuda.memory_reserved() >= before + 64 * MIB
    inside.finish(side)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


@behaviour(gpu=True)
def a_kernel_on_the_other_stream_reads_what_was_written() -> None:
    side = torch.cuda.Stream()
    source = torch.arange(1_000_000, dtype=torch.float32, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        result = source * 2
    source.record_stream(side)
    del source
    scribble = torch.full((1_000_000,), -1.0, device="cuda")
    side.synchronize()
    assert torch.equal(result.cpu(), torch.arange(1_000_000, dtype=torch.float32) * 2)
    del scribble


@behaviour(gpu=True)
def many_freed_temporaries_of_running_kernels_stay_whole() -> None:
    side = torch.cuda.Stream()
    results = []
    for number in range(200):
        x = torch.full((100_000,), float(number), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            results.append((number, (x + 1).sum()))
        x.record_stream(side)
        del x
    side.synchronize()
    assert all(float(total) == (number + 1) * 100_000 for number, total in results)


@behaviour(gpu=True)
def pinned_copies_overlap_without_corruption() -> None:
    side = torch.cuda.Stream()
    host = [torch.full((MIB,), number, dtype=torch.uint8).pin_memory() for number in range(8)]
    there = []
    for source in host:
        with torch.cuda.stream(side):
            tensor = source.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        tensor.record_stream(torch.cuda.current_stream())
        there.append(tensor + 0)
        del tensor
    assert [int(tensor[0]) for tensor in there] == list(range(8))
    assert all(holds(tensor, number) for number, tensor in enumerate(there))
