"""`record` runs a script as python would, and keeps what it allocated, also if it fails."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gpumem_alloc.recording import RecordingError, record_script
from gpumem_alloc.trace import Action, Trace, make_steps, read_trace
from tests.rig.machine import Machine, Run

pytestmark = pytest.mark.torch


def record(machine: Machine, folder: Path, output: str, script: str, *arguments: str) -> Run:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    command = ["record", "-o", str(folder / output), str(path), *arguments]
    return machine.run_fresh(f"from gpumem_alloc.cli import main; main({command!r})", check=False)


NATIVE = """
    import sys, torch
    assert sys.argv[1:] == ["--steps", "3"], sys.argv
    kept = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (700, 5_000_000)]
    del kept[0]
"""
OURS = """
    import gpumem_alloc
    gpumem_alloc.enable()
    import torch
    kept = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (700, 5_000_000)]
    del kept[0]
"""


def allocations(trace: Trace) -> list[int]:
    events = trace.events
    return [int(size) for size in events["bytes"][events["action"] == Action.ALLOC]]


@pytest.mark.parametrize("output", ["run.pickle", "run.pickle.gz", "run.trace"])
def test_pytorchs_history_is_kept_where_ours_is_not_in_use(
    machine: Machine, tmp_path: Path, output: str
) -> None:
    run = record(machine, tmp_path, output, NATIVE, "--steps", "3")
    assert run.returncode == 0, run.stderr
    trace = read_trace(tmp_path / output)
    assert allocations(trace) == [700, 5_000_000]
    assert trace.has_times
    steps = make_steps(trace)
    assert steps.peak_live_bytes == 1024 + 5_000_192
    assert steps.skipped_frees == 0


def test_our_own_events_are_kept_where_ours_is_in_use(machine: Machine, tmp_path: Path) -> None:
    run = record(machine, tmp_path, "run.trace", OURS)
    assert run.returncode == 0, run.stderr
    trace = read_trace(tmp_path / "run.trace")
    assert allocations(trace) == [700, 5_000_000]
    assert make_steps(trace).peak_live_bytes == 1024 + 5_000_192


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("raise KeyError('x')", 1)])
def test_a_script_that_fails_is_recorded_and_its_exit_code_returned(
    machine: Machine, tmp_path: Path, end: str, code: int
) -> None:
    run = record(machine, tmp_path, "run.trace", NATIVE + f"    {end}\n", "--steps", "3")
    assert run.returncode == code
    assert ("KeyError" in run.stderr) == (code == 1)
    assert allocations(read_trace(tmp_path / "run.trace")) == [700, 5_000_000]


def test_a_script_that_never_uses_cuda_leaves_nothing(machine: Machine, tmp_path: Path) -> None:
    run = record(machine, tmp_path, "run.trace", "import torch\n")
    assert run.returncode == 2
    assert "never used CUDA" in run.stderr
    assert not (tmp_path / "run.trace").exists()


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("/proc/run.trace", "cannot be written"),
        ("/proc", "is a folder"),
        ("no/x", "no such folder"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_script_runs(
    tmp_path: Path, output: str, why: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('it ran')")
    with pytest.raises(RecordingError, match=why):
        record_script(script, [], Path(output))
