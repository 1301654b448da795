"""Swapping the allocator in: once, twice, too late, in a child, and going away cleanly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem_alloc
from tests.rig.machine import Machine

pytestmark = pytest.mark.torch


def test_enable_serves_tensors_with_their_contents(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        assert not gpumem_alloc.is_enabled()
        line = gpumem_alloc.enable()
        assert "stock door" in line and torch.__version__ in line and "\\n" not in line
        assert gpumem_alloc.is_enabled()
        assert torch.cuda.get_allocator_backend() == "pluggable"
        tensors = [torch.full((n,), n, dtype=torch.int64) for n in (1, 64, 100_000, 3_000_000)]
        copies = [tensor.cuda() for tensor in tensors]
        assert all(torch.equal(a, b.cpu()) for a, b in zip(tensors, copies))
        assert gpumem_alloc.stats()["allocation.all.current"] == len(copies)
        gpumem_alloc.audit()
    """)


def test_torchs_own_line_works(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        torch.cuda.memory.change_current_allocator(gpumem_alloc.allocator(strategy="split"))
        assert gpumem_alloc.is_enabled()
        assert gpumem_alloc.options().strategy == "split"
        x = torch.ones(1000).cuda()
        assert x.cpu().sum() == 1000
        assert torch.cuda.memory_allocated() == 4096
    """)


def test_without_a_card_the_program_goes_on(tmp_path: Path) -> None:
    code = """
import torch, gpumem_alloc
gpumem_alloc.enable()
assert torch.ones(3).sum() == 3
assert torch.cuda.memory_stats() == {} and torch.cuda.memory_allocated() == 0
if not torch.cuda.is_available():
    assert gpumem_alloc.stats()["allocation.all.current"] == 0
"""
    package = str(Path(gpumem_alloc.__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": package, "GPUMEM_ALLOC_DOOR": "stock"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path,
        env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_swapping_twice_is_a_no_op(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        gpumem_alloc.enable()
        x = torch.ones(1000).cuda()
        gpumem_alloc.enable()
        torch.cuda.memory.change_current_allocator(gpumem_alloc.allocator())
        assert gpumem_alloc.is_enabled() and x.cpu().sum() == 1000
    """)


def test_other_options_the_second_time_are_refused(rig: Machine) -> None:
    rig.run("""
        import gpumem_alloc, inside
        gpumem_alloc.enable(strategy="split")
        text = inside.raised(gpumem_alloc.AllocatorError,
                             lambda: gpumem_alloc.enable(strategy="direct"))
        assert "strategy:split" in text, text
    """)


def test_too_late_names_the_line_that_started_cuda(machine: Machine) -> None:
    run = machine.run("""
        import torch, gpumem_alloc, inside
        def build_model():
            return torch.ones(10).cuda()
        model = build_model()
        print(inside.raised(gpumem_alloc.TooLateError, gpumem_alloc.enable))
    """)
    what, why, do = run.stdout.strip().split("\n")
    assert "too late" in what
    assert "in build_model: `return torch.ones(10).cuda()`" in why
    assert do.startswith("Move ")
    assert "or take the bridge, which may come late" in do
    assert "raised" in do or "enable" in do


def test_too_late_for_torchs_own_line_is_explained_too(machine: Machine) -> None:
    run = machine.run("""
        import torch, gpumem_alloc, inside
        ours = gpumem_alloc.allocator()
        x = torch.ones(10).cuda()
        change = lambda: torch.cuda.memory.change_current_allocator(ours)
        print(inside.raised(gpumem_alloc.TooLateError, change))
        assert x.cpu().sum() == 10  # the native allocator goes on
    """)
    assert "x = torch.ones(10).cuda()" in run.stdout


def test_too_late_without_a_witness_says_how_to_get_one(rig: Machine) -> None:
    run = rig.run("""
        import torch
        torch.cuda.init()
        import gpumem_alloc, inside
        print(inside.raised(gpumem_alloc.TooLateError, gpumem_alloc.enable))
    """)
    assert "import torch, then gpumem_alloc" in run.stdout


def test_a_forked_child_is_refused_and_its_frees_are_ignored(machine: Machine) -> None:
    run = machine.run("""
        import os, warnings, torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        x = torch.ones(10).cuda()
        warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)  # Python 3.12's
        child = os.fork()
        if child == 0:
            for call in (gpumem_alloc.enable, lambda: gpumem_alloc.reserve("1MiB", 0),
                         gpumem_alloc.stats):
                text = inside.raised(gpumem_alloc.AllocatorError, call)
                assert "fork" in text and "spawn" in text, text
            del x  # frees nothing here
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert x.cpu().sum() == 10
        assert gpumem_alloc.stats()["allocation.all.current"] == 1
        gpumem_alloc.audit()
    """)
    assert run.stderr == ""


def test_data_loader_workers_are_unharmed(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        x = torch.ones(10).cuda()
        data = torch.utils.data.TensorDataset(torch.arange(64))
        loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2,
                                             multiprocessing_context="fork")
        assert sum(int(batch[0].sum()) for batch in loader) == 64 * 63 // 2
        assert x.cpu().sum() == 10
        gpumem_alloc.audit()
    """)


EXITS = {
    "live tensors": "keep = [torch.ones(1 << i).cuda() for i in range(0, 24, 3)]",
    "a cycle of tensors": "keep = [torch.ones(9).cuda()]; keep.append(keep)",
    "an exception": "x = torch.ones(9).cuda(); raise SystemExit(0)",
    # A daemon thread that is inside a CUDA call when Python ends aborts the process under any
    # allocator (native: 25 of 25), so the daemon here holds tensors and waits.
    "threads": """
import threading
ready = threading.Barrier(4)
def work(end):
    for _ in range(50):
        torch.ones(1 << 12).cuda()
    mine = torch.ones(1 << 12).cuda()
    keep.append(torch.ones(1 << 12).cuda())
    ready.wait()
    end.wait()
keep, never, soon = [], threading.Event(), threading.Event()
for end, daemon in ((never, True), (soon, False), (soon, False)):
    threading.Thread(target=work, args=(end,), daemon=daemon).start()
ready.wait()
soon.set()
""",
    "tensors in other modules": "import json, os; json.x = os.x = torch.ones(9).cuda()",
}


@pytest.mark.parametrize("how", EXITS)
def test_exits_are_clean(machine: Machine, how: str) -> None:
    prefix = "import torch, gpumem_alloc\ngpumem_alloc.enable()\n"
    for _ in range(4):  # 20 exits in all
        run = machine.run(prefix + EXITS[how])
        assert run.stderr == ""
    run = machine.run_fresh(prefix + EXITS[how])
    assert run.stderr == ""


def test_an_uncaught_exception_keeps_its_exit_code_and_text(machine: Machine) -> None:
    run = machine.run_fresh(
        """
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        x = torch.ones(9).cuda()
        raise ValueError("mine")
        """,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.strip().endswith("ValueError: mine")
    assert "gpumem" not in run.stderr.replace("import torch, gpumem_alloc", "")
