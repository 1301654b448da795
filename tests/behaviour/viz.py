"""PyTorch's own readers of snapshots, and its profiler, open what the allocator tells them."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import KIB, MIB, empty, torch


def _viz() -> Any:
    import torch.cuda._memory_viz as viz

    return viz


def _recorded() -> Any:
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(context="all", stacks="python")
    kept = [empty(70 * KIB), empty(3 * MIB)]
    empty(30 * MIB)
    torch.cuda.memory._set_memory_metadata("")
    whole = torch.cuda.memory._snapshot()
    del kept
    return whole


def _plain(text: str) -> str:
    """In place of the script that would draw a picture."""
    return text


@behaviour()
def segment_plot_opens_it() -> None:
    whole = _recorded()
    page = _viz().segment_plot(whole)
    assert "<script" in page
    assert len(page) > 500


@behaviour()
def trace_plot_opens_it() -> None:
    whole = _recorded()
    for options in ({}, {"device": 0}, {"plot_segments": True}, {"filter_freed": True}):
        assert "<script" in _viz().trace_plot(whole, **options)


@behaviour()
def pairs_of_allocation_and_free_are_filtered() -> None:
    whole = _recorded()
    before = [entry["action"] for entry in whole["device_traces"][0]]
    filtered = _viz().filter_alloc_free_pairs(whole)["device_traces"][0]
    assert before.count("free_completed") == 1
    assert [e["size"] for e in filtered if e["action"] == "alloc"] == [70 * KIB, 3 * MIB]
    assert "free_completed" not in [entry["action"] for entry in filtered]


@behaviour()
def segsum_sums_it_up() -> None:
    whole = _recorded()
    text = _viz().segsum(whole)
    assert f"segments: {len(whole['segments'])}" in text, text
    assert "total_reserved:" in text
    assert "total_allocated: 3.1MiB" in text, text


@behaviour()
def trace_writes_it_as_lines() -> None:
    text = _viz().trace(_recorded())
    assert "[0:70.0KiB]" in text or ":70.0KiB]" in text, text
    assert "# free completed for" in text
    assert "entries" in text.splitlines()[1]


@behaviour()
def memory_and_segments_write_stacks() -> None:
    whole = _recorded()
    for lines in (_viz().memory(whole, _plain), _viz().segments(whole, _plain)):
        assert lines.startswith("stream_")
        assert "_recorded" in lines
        total = sum(int(line.rpartition(" ")[2]) for line in lines.splitlines())
        assert total == sum(segment["total_size"] for segment in whole["segments"])


@behaviour()
def two_snapshots_are_compared() -> None:
    before = torch.cuda.memory_snapshot()
    tensor = empty(40 * MIB)
    after = torch.cuda.memory_snapshot()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        lines = _viz().compare(before, after, _plain)
    assert "only_after;stream_" in lines
    assert "active_allocated" in lines
    assert (
        f"only_after = [{max(s['address'] for s in after)}]" in said.getvalue() or said.getvalue()
    )
    del tensor


@behaviour()
def a_snapshot_is_json() -> None:
    whole = _recorded()
    text = json.dumps(whole)
    assert "_recorded" in text
    assert str(3 * MIB) in text


@behaviour()
def the_saved_usage_pages_name_the_program() -> None:
    whole = _recorded()
    lines = _viz().segments(whole, _plain)
    assert "viz.py" in lines


@behaviour()
def the_profiler_sees_allocations_and_frees() -> None:
    empty(3 * MIB)
    with torch.autograd.profiler.profile(profile_memory=True, use_device=None) as profile:
        tensor = empty(3 * MIB)
        del tensor
    seen = [
        event.nbytes()
        for event in profile.kineto_results.events()
        if event.name() == "[memory]" and str(event.device_type()).endswith("CUDA")
    ]
    assert seen == [3 * MIB, -3 * MIB], seen


@behaviour()
def the_profilers_figures_are_the_allocators() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as done:
        tensor = empty(3 * MIB)
    totals = {event.key: event.device_memory_usage for event in done.key_averages()}
    assert totals["aten::empty"] == 3 * MIB, totals
    del tensor


@behaviour()
def the_profilers_page_of_memory_has_categories() -> None:
    with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as done:
        x = torch.rand(128, 128, device="cuda")
        x = x * x + x * x
    assert "<script" in _viz().profile_plot(done)
    text = json.dumps(_viz()._profile_to_snapshot(done))
    assert "category" in text
    assert "viz.py" in text
    del x
