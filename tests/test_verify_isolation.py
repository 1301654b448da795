"""verify-isolation: every promise is attacked, held where it is made, and seen to fail if not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gpumem_alloc
from gpumem_alloc import _C
from gpumem_alloc.errors import OptionError
from gpumem_alloc.verify.children import run_jobs
from gpumem_alloc.verify.promises import LEVELS, PROMISES, Level, certainty
from gpumem_alloc.verify.report import KEYS, Report
from gpumem_alloc.verify.run import _given_options, _level, run
from tests.rig.machine import Machine

ON_HOST = {promise.name for promise in PROMISES if "host" in promise.places}
# What an allocator without isolation refuses too.
ALWAYS_HELD = {"double free", "foreign pointer", "limit"}


def on_host(level: Level, **options: object) -> Report:
    return run(level, options, places=["host"])


def held(report: Report) -> set[str]:
    return {check.name for check in report.checks if check.held}


def certain(level: Level) -> set[str]:
    options = _C.parse_options("")
    return {each.name for each in PROMISES if certainty(each, level, options) == "certain"}


# ---- what is promised


def test_each_level_keeps_what_those_before_it_promise() -> None:
    order = ("never", "sometimes", "certain")
    for promise in PROMISES:
        ranks = [order.index(promise.levels[level]) for level in LEVELS]
        assert ranks == sorted(ranks), promise.name


def test_what_is_asked_for_without_a_gpu_is_there() -> None:
    asked = {
        "double free", "foreign pointer", "predecessor's data", "limit", "overrun",
        "use after free: read", "use after free: write", "cross-stream reuse", "export: descriptor",
    }  # fmt: skip
    assert asked <= ON_HOST
    assert len({promise.name for promise in PROMISES}) == len(PROMISES)


def test_without_poison_and_scrub_less_is_promised() -> None:
    bare = _C.parse_options("poison:off,scrub:off")
    for promise in PROMISES:
        if promise.name in ("predecessor's data", "memory given back"):
            assert {certainty(promise, level, bare) for level in LEVELS} == {"never"}


def promises_table() -> str:
    lines = [
        f"| {each.name} | {each.promise} | {' | '.join(each.levels[level] for level in LEVELS)} |"
        for each in PROMISES
    ]
    return "\n".join(lines)


def test_the_document_has_the_table(root: Path) -> None:
    table = promises_table()
    assert table in (root / "docs" / "verify-isolation.md").read_text(), f"it should be\n{table}"


# ---- on the driver on the CPU


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_holds_what_it_promises(level: Level) -> None:
    report = on_host(level, isolation=level)
    assert held(report) == certain(level) & ON_HOST, report.failures
    assert report.exit_code == 0
    for check in report.checks:
        assert check.why or check.held
        assert not check.native.startswith("failed"), check
        assert not check.ours.startswith("failed"), check


def test_the_same_attacks_get_through_where_nothing_is_isolated() -> None:
    report = on_host("strict", strategy="paged", isolation="off")
    assert {check.name for check in report.failures} == ON_HOST - ALWAYS_HELD
    assert report.exit_code == 1


def test_the_same_attacks_get_through_the_model_of_native() -> None:
    through = {
        check.name: check.native
        for check in on_host("strict", isolation="strict").checks
        if check.native.startswith("caching (modelled): ")
    }
    assert set(through) == ON_HOST - {"memory given back"}
    assert "changed another tensor" in through["overrun"]
    assert "reads the tensor's data" in through["use after free: read"]
    assert "freed the next tensor" in through["stale free"]


def test_options_in_force_count() -> None:
    report = on_host("tensor", isolation="tensor", guard="lower")
    outcomes = {check.name: check.ours for check in report.checks}
    assert outcomes["underrun"] == "faulted in the kernel"
    assert outcomes["overrun"].startswith("found: overrun of a tensor")
    report = on_host("strict", isolation="strict", poison="off", scrub="off")
    assert report.exit_code == 0
    assert "predecessor's data" not in held(report)


def test_a_machine_on_the_cpu_answers_what_it_is_asked() -> None:
    machine = _C.HostMachine("isolation:tensor", page_bytes=1 << 16)
    address = machine.allocate(1000, 16)
    write = machine.poke(address, 4, 0x41, 16)
    assert write.poll() is None
    assert machine.advance(16, 100) > 0
    assert write.poll() == "done"
    machine.record_stream(address, 32)
    machine.free(address)
    assert machine.peek(address, 4, 32).wait() == "done"  # that stream has not got there
    machine.drain()
    machine.allocate(16, 16)  # sees that it has, and queues the check and the fill
    machine.drain()
    assert machine.allocate(16, 16) != address
    assert machine.peek(address, 4).wait() == "fault"
    with pytest.raises(_C.StatusError, match="double free"):
        machine.free(address)
    assert len(machine.violations()) == 1
    assert machine.held_bytes() >= 1 << 16


# ---- the level, and the command


def test_the_level_is_the_one_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    def level(text: str, asked: str | None = None) -> str:
        monkeypatch.setenv("GPUMEM_ALLOC_CONF", text)
        return _level(asked, _given_options())

    assert level("") == "strict"
    assert level("isolation:packed") == "packed"
    assert level("strategy:isolated") == "tensor"
    assert level("isolation:packed", "stream") == "stream"
    monkeypatch.setenv("GPUMEM_ALLOC_CONF", "")
    with pytest.raises(OptionError, match="no level 'off'"):
        gpumem_alloc.verify_isolation("off")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpumem_alloc", "verify-isolation", *arguments],
        capture_output=True, text=True, check=False, timeout=240,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


def check_form(report: dict[str, Any]) -> None:
    assert list(report) == ["mode", "device", "checks"]
    assert [check["name"] for check in report["checks"]] == [each.name for each in PROMISES]
    for check in report["checks"]:
        assert tuple(check) == KEYS
        assert check["held"] in (True, False, None)
        assert all(isinstance(check[key], str) for key in KEYS if key != "held")
        assert bool(check["why"]) == (check["held"] is not True)


@pytest.mark.torch
def test_the_command_passes_and_says_what_it_did_not_run() -> None:
    done = command("--isolation", "strict", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    check_form(report)
    assert report["mode"] == "strict"
    assert "CPU" in report["device"]
    by_name = {check["name"]: check for check in report["checks"]}
    for method in ("fork", "spawn", "forkserver"):
        check = by_name[f"workers: {method}"]
        assert check["held"], check
        assert check["native"].startswith("left "), check
    not_run = {name for name, check in by_name.items() if check["held"] is None}
    assert not_run == {"export: cudaIpc", "export: dma-buf", "export: torch"}
    assert {by_name[name]["why"] for name in not_run} == {"not run: no GPU"}


def test_the_command_refuses_another_level() -> None:
    done = command("--isolation", "loose")
    assert done.returncode == 2
    assert "stream, packed, tensor, strict" in done.stderr


# ---- child processes


def job(name: str, seconds: float = 30, **options: object) -> dict[str, Any]:
    return {
        "id": name, "module": "tests.attack_program", "name": name, "side": "ours",
        "options": options, "alone": False, "seconds": seconds,
    }  # fmt: skip


def test_whatever_an_attack_does_there_is_an_answer(tmp_path: Path, root: Path) -> None:
    file = tmp_path / "pid"
    jobs = [job("hang", 1, file=str(file)), *map(job, ("crash", "raise", "cannot", "fine"))]
    jobs[-1]["alone"] = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(root))
        answers = run_jobs(jobs, 2, [])
    assert answers["fine"] == {"stopped": True, "text": "ours is fine", "error": ""}
    assert answers["cannot"]["text"] == "not run: there is no moon"
    assert answers["raise"]["error"] == "ValueError: a mistake"
    assert answers["crash"]["error"] == "its process was ended by SIGSEGV"
    assert answers["hang"]["error"] == "it did not end within 1 s"
    status = Path(f"/proc/{file.read_text()}/status")  # what it started is dead, if not buried
    assert not status.exists() or "State:\tZ" in status.read_text()


# ---- on a card


@pytest.mark.torch
def test_the_attacks_on_a_card_run_on_the_stand_in(rig: Machine, bridge: Path) -> None:
    assert bridge.is_file()
    done = rig.run_fresh(
        """
        import json
        from gpumem_alloc.verify.run import run
        report = run("strict", {"isolation": "strict"}, places=["card", "two cards"])
        print(json.dumps(report.to_dict()))
        """,
        env={"RIG_DEVICES": "2", "GPUMEM_ALLOC_DOOR": "bridge"},
    )
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    in_processes = {each.name for each in PROMISES if "processes" in each.places}
    held_there = {name for name, check in checks.items() if check["held"]}
    assert held_there == certain("strict") - in_processes, checks
    for name, native in {  # the same attacks get through
        "overrun": "changed another tensor",
        "memory given back": "the driver gets it with the data in it",
        "export: descriptor": "gave a file descriptor",
        "export: cudaIpc": "gave a CUDA IPC handle",
        "export: dma-buf": "gave a dma-buf",
        "export: torch": "was pickled, with a handle of its memory",
        "peer access": "reads the tensor's data",
    }.items():
        assert checks[name]["native"] == native


@pytest.mark.gpu
@pytest.mark.torch
def test_on_a_card_kernels_are_compiled_where_none_are_built_in(gpu: Machine) -> None:
    gpu.run("""
        import torch
        from gpumem_alloc.verify.kernels import CompiledKernels
        x = torch.zeros(1024, dtype=torch.uint8, device="cuda")
        kernels = CompiledKernels(torch)
        stream = torch.cuda.Stream().cuda_stream
        assert kernels.poke(0, stream, x.data_ptr() + 1, 600, 0x41, 20_000_000).wait() == "done"
        assert x.cpu().tolist() == [0] + [0x41] * 600 + [0] * 423
        peek = kernels.peek(0, stream, x.data_ptr(), 3)
        assert (peek.wait(), peek.data) == ("done", b"\\0AA")
        assert kernels.peek(0, stream, 1 << 46, 3).wait() == "fault"
        import os
        os._exit(0)  # torch's destructors complain
    """)


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("level", LEVELS)
def test_on_a_card_each_level_holds_what_it_promises(level: Level) -> None:
    report = run(level, {"isolation": level}, places=["card", "two cards"])
    assert report.failures == []
    on_card = {promise.name for promise in PROMISES if "card" in promise.places}
    assert held(report) >= on_card & certain(level)


@pytest.mark.gpu
@pytest.mark.torch
def test_on_a_card_the_same_attacks_get_through_where_nothing_is_isolated() -> None:
    report = run("strict", {"strategy": "paged", "isolation": "off"}, places=["card"])
    through = {check.name for check in report.failures}
    assert {"overrun", "use after free: read", "stale free", "missing record_stream"} <= through
