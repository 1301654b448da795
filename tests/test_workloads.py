"""The benchmark's workloads: the registry, and runs of a step or two on the stand-in card."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from benchmarks.workloads import FAMILIES, MAIN_WORKLOADS, WORKLOADS, Workload
from benchmarks.workloads.shapes import SEEDS, SHARES, shapes_of, share
from tests.rig.machine import Machine

# One program runs them all, as importing torch and loading kernels takes longer than the steps do.
# Numbers that would only make the stand-in card slow are smaller here.
PROGRAM = """
import gc, json, sys
sys.path.insert(0, {root!r})
import torch
from no_blas import NoBlas
from benchmarks.workloads import WORKLOADS, patterns, serving

patterns.SMALL_TENSORS_A_STEP = 2000
serving.GRAPH_SIZES = (1, 8, 256)
serving.Engine.LAYERS, serving.Engine.EDGE, serving.Engine.CACHE_MIB = 2, 512, (16, 32)
if {enable}:
    import gpumem_alloc
    gpumem_alloc.enable()
torch.backends.cuda.enable_cudnn_sdp(False)
torch.backends.cudnn.enabled = False  # kernels of torch's own ask for the same shapes
with NoBlas():
    torch.ones(8, device="cuda").sum()
gc.freeze()  # later collections look at what the workloads made only
for name, steps, size in {runs!r}:
    workload = WORKLOADS[name]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    marks, live = [], []
    def mark(loss):
        torch.cuda.synchronize()
        assert loss is None or torch.as_tensor(loss).numel() == 1
        del loss
        stats = torch.cuda.memory_stats()
        marks.append(stats["requested_bytes.all.allocated"])
        live.append(stats["requested_bytes.all.current"])
    with NoBlas():
        if size is None:
            workload.run(torch, steps, mark)
        else:
            workload.sized.run(torch, size, workload.sized.steps, mark)
    gc.collect()
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # what other streams still used is free by now
    after = torch.cuda.memory_stats()
    requested = before["requested_bytes.all.allocated"]
    print("RAN " + json.dumps([name, {{
        "requested_bytes": [mark - requested for mark in marks],
        "live_bytes": live,
        "left_bytes": after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"],
        "peak_bytes": after["allocated_bytes.all.peak"],
    }}]))
"""
CARD = {"RIG_CAPACITY_MB": "144000"}
TORCH_ONLY = [name for name, workload in WORKLOADS.items() if not workload.requires]
# Left out of runs here, as it takes the stand-in card seconds to make their models or buffers.
LONG = {"moe", "train", "text_varlen", "prefetch_train", "pipeline", "rmm_random_4m"}
RUN_HERE = [name for name in TORCH_ONLY if name not in LONG]
KEEP = {"seed004", "checker", "kv", "small_tensors", "buffers"}  # tensors for later steps, that is
Run = tuple[str, int, int | None]  # name, steps, size
Ran = list[tuple[str, dict[str, Any]]]
PLAIN_RUNS: list[Run] = [(name, 2, None) for name in RUN_HERE]
SIZED_RUNS: list[Run] = [
    (name, 0, times * sized.smallest)
    for name in RUN_HERE
    if (sized := WORKLOADS[name].sized) is not None
    for times in (1, 2, 3)
]


def run_all(machine: Machine, root: Path, runs: list[Run], enable: bool = False) -> Ran:
    """Return each run's numbers, in order."""
    program = PROGRAM.format(root=str(root), runs=runs, enable=enable)
    lines = machine.run(program, env=CARD).stdout.splitlines()
    return [json.loads(line[4:]) for line in lines if line.startswith("RAN ")]


@pytest.fixture(scope="module")
def native(rig: Machine, root: Path) -> Ran:
    """PyTorch's allocator under all that is run here, in one program to save time."""
    return run_all(rig, root, PLAIN_RUNS + SIZED_RUNS)


def test_every_workload_says_what_it_stresses_and_has_a_seed_and_a_family() -> None:
    assert set(SEEDS) == set(WORKLOADS)
    for name, workload in WORKLOADS.items():
        assert workload.name == name
        assert len(workload.stresses.split()) > 6, name
        assert len(workload.stresses) < 100, name
        assert workload.family in FAMILIES, name
        assert 1 <= workload.smoke_steps <= workload.steps, name
    assert {workload.family for workload in WORKLOADS.values()} == set(FAMILIES)
    assert set(MAIN_WORKLOADS) < set(WORKLOADS)


def test_seven_workloads_can_run_at_a_size() -> None:
    sized = {name: workload.sized for name, workload in WORKLOADS.items() if workload.sized}
    assert len(sized) == 7
    for name, each in sized.items():
        assert each.smallest >= 1, name
        assert 3 <= each.steps <= 5, name  # the third has the whole size
        assert (each.run.__doc__ or "").strip(), name


def test_what_is_missing_is_what_pip_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: real("json"))
    assert [name for name, workload in WORKLOADS.items() if workload.missing] == []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for workload in WORKLOADS.values():
        assert workload.missing == list(workload.requires)
    asked: list[str] = []
    monkeypatch.setattr(importlib.util, "find_spec", asked.append)
    needs_two = Workload(WORKLOADS["gnn"].run, 1, "model", requires=("peft>=0.10", "timm<2"))
    assert len(needs_two.missing) == 2
    assert asked == ["peft", "timm"]


def test_each_imports_only_what_it_asks_pip_for() -> None:
    for name, workload in WORKLOADS.items():
        asked = {requirement.partition(">")[0] for requirement in workload.requires}
        assert {library.partition(".")[0] for library in workload.libraries} <= asked, name
        assert bool(workload.libraries) == bool(workload.requires), name


def test_the_registry_needs_neither_torch_nor_a_library(root: Path) -> None:
    code = (
        "import sys, benchmarks.workloads; print(sorted(m.partition('.')[0] for m in sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    for module in ("torch", "numpy", "transformers", "timm"):
        assert repr(module) not in done.stdout
    assert "'benchmarks'" in done.stdout


@given(some.integers(1, 10_000), some.integers(0, 9))
def test_a_larger_size_has_no_smaller_step(size: int, step: int) -> None:
    assert 1 <= share(size, step) <= share(size + 1, step)
    assert share(size, 2) == size == max(share(size, each) for each in range(len(SHARES)))


def test_shapes_are_the_same_in_every_run() -> None:
    assert shapes_of("gnn").random() == shapes_of("gnn").random()
    assert shapes_of("gnn").random() != shapes_of("moe").random()


@pytest.mark.torch
def test_workloads_ask_for_the_same_whatever_the_allocator_and_keep_nothing(
    rig: Machine, root: Path, native: Ran
) -> None:
    ours = run_all(rig, root, PLAIN_RUNS, enable=True)
    plain = native[: len(PLAIN_RUNS)]
    assert [name for name, _ in plain] == RUN_HERE
    for (name, by_native), (_, by_ours) in zip(plain, ours, strict=True):
        assert len(by_native["requested_bytes"]) == 2, name
        assert by_native["requested_bytes"] == by_ours["requested_bytes"], name
        assert (by_native["left_bytes"], by_ours["left_bytes"]) == (0, 0), name
        first, second = by_native["live_bytes"]
        assert (first != second) == (name in KEEP), name


@pytest.mark.torch
def test_a_larger_size_needs_more_memory(native: Ran) -> None:
    peaks = [numbers["peak_bytes"] for _, numbers in native[len(PLAIN_RUNS) :]]
    assert len(peaks) == 6
    for first in range(0, len(peaks), 3):
        assert peaks[first] * 1.2 < peaks[first + 1] < peaks[first + 2]


def test_a_workload_is_another_one_after_a_change_of_code_alone(tmp_path: Path) -> None:
    def code_id(text: str) -> str:
        path = tmp_path / "made.py"
        path.write_text(text)
        space: dict[str, Any] = {}
        exec(compile(text, path, "exec"), space)
        return Workload(space["loop"], 1, "pattern").code_id

    first = code_id('"""One."""\ndef loop(torch, steps, mark):\n    "Two."\n    size = 7\n')
    told = code_id("def loop(torch, steps, mark):\n    size = 7  # three\n")
    assert told == first
    assert code_id("def loop(torch, steps, mark):\n    size = 8\n") != first
