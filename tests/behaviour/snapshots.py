"""memory_snapshot(): segments whose blocks tile them, as every reader of snapshots expects."""

from __future__ import annotations

import pickle
import tempfile
from itertools import pairwise
from pathlib import Path

from tests.behaviour.table import behaviour
from tests.behaviour.tools import (
    KIB,
    MIB,
    block_of,
    empty,
    pool_of,
    segment_of,
    segments,
    stats,
    torch,
    version,
)  # fmt: skip
from tests.rig import inside

_SIZES = (1, 600, 5000, 70_000, MIB, 3 * MIB, 11 * MIB, 40 * MIB)


def _varied() -> list[object]:
    tensors = [empty(size) for size in _SIZES * 2]
    del tensors[1::3]
    return tensors


@behaviour()
def a_segment_has_these_fields() -> None:
    tensors = _varied()
    fields = {
        "device": int, "address": int, "total_size": int, "allocated_size": int,
        "active_size": int, "requested_size": int, "stream": int, "segment_type": str,
        "segment_pool_id": tuple, "is_expandable": bool, "frames": list, "blocks": list,
    }  # fmt: skip
    for segment in segments():
        assert set(segment) >= set(fields), set(segment) ^ set(fields)
        assert all(isinstance(segment[name], kind) for name, kind in fields.items()), segment
        assert segment["segment_type"] in ("small", "large")
        for block in segment["blocks"]:
            assert set(block) >= {"address", "size", "requested_size", "state", "frames"}
    del tensors


@behaviour()
def blocks_tile_their_segment_in_order() -> None:
    tensors = _varied()
    for segment in segments():
        place = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == place
            assert block["size"] > 0
            place += block["size"]
        assert place == segment["address"] + segment["total_size"]
    del tensors


@behaviour()
def segments_are_apart_and_in_order_of_address() -> None:
    tensors = _varied()
    shown = segments()
    for one, next_one in pairwise(shown):
        assert one["address"] + one["total_size"] <= next_one["address"]
    del tensors


@behaviour()
def no_two_neighbours_are_free() -> None:
    tensors = _varied()
    for segment in segments():
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in pairwise(states), states
    del tensors


@no_two_neighbours_are_free.differs(
    "the free places of a run of small objects are shown one by one"
)
def _() -> None:
    tensors = _varied()
    for segment in segments():
        for one, other in pairwise(segment["blocks"]):
            if one["state"] == other["state"] == "inactive":
                assert min(one["size"], other["size"]) <= 8 * KIB
    del tensors


@behaviour()
def sums_of_blocks_are_the_figures_of_their_segment() -> None:
    tensors = _varied()
    for segment in segments():
        blocks = segment["blocks"]
        used = [block for block in blocks if block["state"] == "active_allocated"]
        active = [block for block in blocks if block["state"] != "inactive"]
        assert segment["allocated_size"] == sum(block["size"] for block in used)
        assert segment["active_size"] == sum(block["size"] for block in active)
        assert segment["requested_size"] == sum(block["requested_size"] for block in active)
    del tensors


@behaviour()
def sums_of_segments_are_the_statistics() -> None:
    tensors = _varied()
    for field, name in (
        ("total_size", "reserved_bytes"),
        ("allocated_size", "allocated_bytes"),
        ("active_size", "active_bytes"),
        ("requested_size", "requested_bytes"),
    ):
        total = sum(segment[field] for segment in segments())
        assert total == stats(f"{name}.all.current"), name
    del tensors


@behaviour()
def a_tensor_is_an_allocated_block_of_its_size() -> None:
    tensors = [empty(size) for size in _SIZES]
    for size, tensor in zip(_SIZES, tensors, strict=True):
        block = block_of(tensor)
        assert block["state"] == "active_allocated"
        assert block["requested_size"] == size
        assert block["size"] >= size


@behaviour()
def a_freed_block_is_inactive() -> None:
    kept = [empty(3 * MIB) for _ in range(3)]
    place = kept[1].data_ptr()
    del kept[1]
    blocks = [block for segment in segments() for block in segment["blocks"]]
    (block,) = [b for b in blocks if b["address"] <= place < b["address"] + b["size"]]
    assert block["state"] == "inactive"


@behaviour()
def a_block_another_stream_still_uses_is_pending() -> None:
    side = torch.cuda.Stream()
    tensor = empty(3 * MIB)
    place = tensor.data_ptr()
    inside.hold(side)
    tensor.record_stream(side)
    del tensor
    states = {b["address"]: b["state"] for s in segments() for b in s["blocks"]}
    assert states[place] == "active_pending_free"
    inside.finish(side)
    empty(100)  # looks at what is done
    states = {b["address"]: b["state"] for s in segments() for b in s["blocks"]}
    assert states.get(place, "inactive") == "inactive"


@behaviour()
def small_and_large_blocks_lie_in_segments_of_their_kind() -> None:
    small, large = empty(100), empty(3 * MIB)
    assert segment_of(small)["segment_type"] == "small"
    assert segment_of(large)["segment_type"] == "large"


@small_and_large_blocks_lie_in_segments_of_their_kind.differs(
    "blocks of every size share memory; a segment is called large if it is more than 2 MiB"
)
def _() -> None:
    small, large = empty(100), empty(3 * MIB)
    for segment in segments():
        kind = "large" if segment["total_size"] > 2 * MIB else "small"
        assert segment["segment_type"] == kind
    del small, large


@behaviour()
def small_tensors_come_two_mebibytes_and_middling_ones_twenty_at_a_time() -> None:
    small, large, middle = empty(100), empty(10 * MIB + 1), empty(3 * MIB)
    assert segment_of(small)["total_size"] == 2 * MIB
    assert segment_of(middle)["total_size"] == 20 * MIB
    assert segment_of(large)["total_size"] == 12 * MIB


@small_tensors_come_two_mebibytes_and_middling_ones_twenty_at_a_time.differs(
    "memory is taken by the page of 2 MiB, as much as is missing"
)
def _() -> None:
    tensors = [empty(100), empty(10 * MIB + 1), empty(3 * MIB)]
    reserved = torch.cuda.memory_reserved()
    assert reserved % (2 * MIB) == 0
    assert 13 * MIB < reserved <= 18 * MIB
    tensors.clear()


@behaviour()
def a_segment_names_the_stream_it_serves() -> None:
    side = torch.cuda.Stream()
    here = empty(3 * MIB)
    with torch.cuda.stream(side):
        there = empty(3 * MIB)
    assert segment_of(here)["stream"] == torch.cuda.current_stream().cuda_stream
    assert segment_of(there)["stream"] == side.cuda_stream
    del here, there
    side.synchronize()


@behaviour()
def a_segment_names_its_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inner = empty(3 * MIB)
    outer = empty(3 * MIB)
    assert pool_of(inner) == pool.id
    assert pool_of(outer) == (0, 0)
    del inner, outer, pool


@behaviour()
def a_pools_snapshot_shows_only_the_pool() -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inner = empty(3 * MIB)
    outer = empty(3 * MIB)
    for shown in (pool.snapshot(), torch.cuda.memory_snapshot(pool.id)):
        assert [tuple(segment["segment_pool_id"]) for segment in shown] == [pool.id]
        assert any(b["address"] == inner.data_ptr() for b in shown[0]["blocks"])
    assert len(pool.snapshot(include_traces=False)) == 1
    del inner, outer, pool


@behaviour()
def the_whole_snapshot_has_these_parts() -> None:
    tensor = empty(3 * MIB)
    whole = torch.cuda.memory._snapshot()
    parts = {"segments", "device_traces", "allocator_settings", "external_annotations"}
    assert set(whole) >= parts, set(whole)
    if version() >= (2, 14):
        assert set(whole) == parts | {"host_segments", "host_traces"}
    assert len(whole["device_traces"]) == torch.cuda.device_count()
    assert whole["segments"] == torch.cuda.memory_snapshot()
    settings = whole["allocator_settings"]
    assert {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments", "max_split_size"} <= set(settings)
    del tensor


@behaviour()
def a_dumped_snapshot_is_the_snapshot() -> None:
    tensor = empty(70 * KIB)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot.pickle"
        torch.cuda.memory._dump_snapshot(str(file))
        read = pickle.loads(file.read_bytes())
    assert read["segments"] == torch.cuda.memory_snapshot()
    del tensor


@behaviour()
def with_nothing_reserved_a_snapshot_is_empty() -> None:
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.cuda.memory_snapshot() == []
