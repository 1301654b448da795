"""The benchmark's arithmetic, and its workers on the stand-in card."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare_gpu, run
from benchmarks import old_summary as summary
from benchmarks.workloads import MAIN_WORKLOADS, WORKLOADS

MIB = 1 << 20


def row(allocator: str, step_ms: list[float], **changes: Any) -> summary.Row:
    made = {
        "workload": "w",
        "allocator": allocator,
        "round": 0,
        "deterministic": False,
        "step_ms": step_ms,
        "losses": ["0x1p+0"] * len(step_ms),
        "live_peak_bytes": 900 * MIB,
        "reserved_peak_bytes": 1000 * MIB,
        "card": {"peak_bytes": 1100 * MIB, "polls_per_second": 900.0, "source": "nvml"},
        "run_s": 1.0,
        "startup_s": 1.0,
    }
    return made | changes


def arguments(**changes: Any) -> argparse.Namespace:
    made = compare_gpu.make_parser().parse_args([])
    vars(made).update(changes)
    return made


def test_rounds_alternate_and_end_with_the_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def worker(workload: str, allocator: str, extra: list[str], seconds: float) -> summary.Row:
        fixed = "--deterministic" in extra
        asked.append((workload, allocator, fixed))
        machine = {"gpu": "NVIDIA H200", "git_id": "", "gpumem_alloc": "0", "torch": "2"}
        return row(allocator, [1.0] * 4, workload=workload, deterministic=fixed, machine=machine)

    monkeypatch.setattr(compare_gpu, "run_worker", worker)
    monkeypatch.setattr(compare_gpu, "RESULTS", tmp_path)
    path = compare_gpu.compare(arguments(workloads=["buffers"], rounds=2, loss_steps=2))
    assert path is not None
    assert path.name.endswith("-nvidia-h200.json")
    assert [name for _, name, fixed in asked if not fixed] == [
        *("native", "expandable", "paged"),
        *("paged", "expandable", "native"),
    ]
    fixed_order = [name for _, name, fixed in asked if fixed]
    assert fixed_order == ["native", "paged", "native"]
    results = json.loads(path.read_text())
    assert len(results["rows"]) == len(asked) == 9
    asked.clear()
    compare_gpu.compare(arguments(workloads=["buffers"], seconds=1.0))
    assert asked == []


def test_without_a_gpu_it_replays_and_draws(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, root: Path
) -> None:
    picture = tmp_path / "made" / "replay.png"
    trace = root / "benchmarks" / "traces" / "prefetch_train.pickle.gz"
    run.by_replay(argparse.Namespace(trace=[trace], picture=picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    for word in ("native-expandable", "split", "paged", "No GPU was found", "picture:"):
        assert word in shown
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(b"no pickle")
    with pytest.raises(SystemExit, match=r"bench: broken\.pickle: "):
        run.by_replay(argparse.Namespace(trace=[broken], picture=picture))


def test_the_main_workloads_exist_and_say_what_is_unordered() -> None:
    assert set(MAIN_WORKLOADS) < set(WORKLOADS)
    assert all(WORKLOADS[name].unordered for name in MAIN_WORKLOADS)
