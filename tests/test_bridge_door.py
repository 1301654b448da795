"""Which door enable() takes, what it says, and the real bridge behind it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpumem_alloc.bridge import stamps
from tests.rig.machine import Machine, Run

pytestmark = pytest.mark.torch

TORCHS_LIBRARIES = {"libc10", "libc10_cuda", "libtorch", "libtorch_cpu", "libtorch_cuda",
                    "libtorch_python"}  # fmt: skip
OTHER_LIBRARIES = {"libcudart", "libstdc++", "libgcc_s", "libc", "libm", "libpthread", "libdl",
                   "ld-linux-x86-64", "ld-linux-aarch64"}  # fmt: skip


@pytest.fixture
def without(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine that cannot build the bridge and has none."""
    return {"GPUMEM_ALLOC_CACHE": str(tmp_path), "CXX": "/nowhere/g++", "GPUMEM_ALLOC_DOOR": "auto"}


def command_line(machine: Machine, *arguments: str, env: Mapping[str, str]) -> Run:
    code = f"from gpumem_alloc.cli import main; main({list(arguments)!r})"
    return machine.run(code, check=False, env=env)


# --- without a bridge -----------------------------------------------------------------------------


def test_without_a_compiler_the_stock_door_serves_with_one_line(
    rig: Machine, without: dict[str, str]
) -> None:
    run = rig.run(
        """
        import torch, gpumem_alloc
        first = gpumem_alloc.enable()
        assert "the stock door of torch" in first
        assert gpumem_alloc.enable() == first
        assert torch.ones(10).cuda().cpu().sum() == 10
        assert gpumem_alloc.is_enabled()
        """,
        env=without,
    )
    line, source = run.stderr.splitlines()
    assert "RuntimeWarning: gpumem_alloc: the stock door serves torch instead of" in line
    assert "/nowhere/g++" in line
    assert "MemPool" in line
    assert "apt-get install g++" in line
    assert source.strip() == "first = gpumem_alloc.enable()"


def test_asked_for_the_bridge_is_not_replaced_by_the_stock_door(
    rig: Machine, without: dict[str, str]
) -> None:
    code = """
        import torch, gpumem_alloc, inside
        text = inside.raised(gpumem_alloc.AllocatorError, lambda: gpumem_alloc.enable(ARGUMENTS))
        what, why, fix = text.splitlines()
        assert "/nowhere/g++" in what and "apt-get install" in fix, text
        assert not gpumem_alloc.is_enabled()
        assert "stock door" in gpumem_alloc.enable(door="stock")
    """
    rig.run(code.replace("ARGUMENTS", 'door="bridge"'), env=without)
    rig.run(code.replace("ARGUMENTS", ""), env={**without, "GPUMEM_ALLOC_DOOR": "bridge"})


def test_the_stock_door_can_be_asked_for_and_needs_no_compiler(
    rig: Machine, without: dict[str, str]
) -> None:
    code = "import gpumem_alloc; print(gpumem_alloc.enable(ARGUMENTS))"
    for arguments, door in (("", "stock"), ('door="stock"', "bridge")):
        run = rig.run(
            code.replace("ARGUMENTS", arguments), env=without | {"GPUMEM_ALLOC_DOOR": door}
        )
        assert "the stock door" in run.stdout
        assert run.stderr == ""


def test_an_unknown_door_is_refused_wherever_it_stands(
    rig: Machine, without: dict[str, str]
) -> None:
    rig.run(
        """
        import gpumem_alloc, inside
        text = inside.raised(gpumem_alloc.OptionError, gpumem_alloc.enable)
        assert "'brige' in GPUMEM_ALLOC_DOOR" in text and len(text.splitlines()) == 3, text
        text = inside.raised(gpumem_alloc.OptionError, lambda: gpumem_alloc.enable(door="front"))
        assert "'front' in enable()" in text and "auto, bridge, stock" in text, text
        """,
        env=without | {"GPUMEM_ALLOC_DOOR": "brige"},
    )


def test_a_second_door_is_refused(rig: Machine) -> None:
    rig.run("""
        import gpumem_alloc, inside
        gpumem_alloc.enable()
        gpumem_alloc.enable(door="auto")
        text = inside.raised(gpumem_alloc.AllocatorError,
                             lambda: gpumem_alloc.enable(door="bridge"))
        assert "bridge door was asked for" in text and "stock door" in text, text
    """)


# --- what the command line says -------------------------------------------------------------------


def test_status_says_what_is_missing_and_what_brings_it(
    rig: Machine, without: dict[str, str]
) -> None:
    run = command_line(rig, "bridge", "status", "--json", env=without)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)
    assert report["torch"].startswith("2.")
    assert report["cuda"].startswith("1")
    assert report["compiler"] is None
    assert "crt" not in report["problems"][0]
    assert "/nowhere/g++" in report["problems"][0]
    assert "apt-get install g++" in report["fixes"][0]
    assert report["folder"].startswith(without["GPUMEM_ALLOC_CACHE"])
    assert (report["module"], report["door"]) == (None, "stock")
    assert len(report["source_id"]) == 16
    text = command_line(rig, "bridge", "status", env=without).stdout
    assert "enable() will  take the stock door, with a warning" in text
    assert "apt-get install g++" in text


def test_status_of_a_machine_that_has_all(rig: Machine, bridge: Path) -> None:
    report = json.loads(command_line(rig, "bridge", "status", "--json", env={}).stdout)
    assert report["module"] == str(bridge)
    assert report["then"] == "take the stock door, since GPUMEM_ALLOC_DOOR=stock"  # as this rig is
    auto = {"GPUMEM_ALLOC_DOOR": "auto"}
    report = json.loads(command_line(rig, "bridge", "status", "--json", env=auto).stdout)
    assert (report["door"], report["problems"]) == ("bridge", [])
    assert report["then"] == "load the bridge that is there"


def test_a_build_that_cannot_be_is_three_lines_and_exit_code_1(
    rig: Machine, without: dict[str, str]
) -> None:
    run = command_line(rig, "bridge", "build", env=without)
    assert (run.returncode, run.stdout) == (1, "")
    assert len(run.stderr.splitlines()) == 3


# --- the real one ---------------------------------------------------------------------------------


def readelf(what: str, module: Path) -> str:
    command = ["readelf", what, "--wide", str(module)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_it_compiles_without_a_warning(bridge: Path) -> None:
    log = (bridge.parent / "build.log").read_text()
    assert " -Wshadow " in log
    assert "warning:" not in log


def test_it_is_stamped_and_linked_to_what_torch_has_loaded(bridge: Path) -> None:
    stamp = stamps.read(bridge)
    assert stamp is not None
    assert stamp.torch in bridge.parent.name
    assert stamp.source_id in bridge.parent.name
    dynamic = readelf("--dynamic", bridge)
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\.so", dynamic))
    assert {"libc10_cuda", "libstdc++"} <= needed
    assert needed <= TORCHS_LIBRARIES | OTHER_LIBRARIES
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


def test_it_exports_its_module_and_nothing_of_ours(bridge: Path) -> None:
    symbols = readelf("--dyn-syms", bridge).splitlines()
    defined = [line.split() for line in symbols if re.search(r" (FUNC|OBJECT) ", line)]
    ours = {f[7] for f in defined if f[6] != "UND" and f[4] == "GLOBAL" and f[5] == "DEFAULT"}
    assert ours == {"PyInit__bridge"}


def test_enable_takes_it_and_a_second_time_does_nothing(bridged: Machine) -> None:
    run = bridged.run("""
        import torch, gpumem_alloc
        assert not gpumem_alloc.is_enabled()
        line = gpumem_alloc.enable()
        assert line.endswith(f": the bridge to torch {torch.__version__}"), line
        assert gpumem_alloc.enable() == line and gpumem_alloc.is_enabled()
        x = torch.ones(1000).cuda()
        assert gpumem_alloc.enable() == line
        torch.cuda.memory.change_current_allocator(gpumem_alloc.allocator())
        assert gpumem_alloc.is_enabled() and x.cpu().sum() == 1000
        assert gpumem_alloc.stats()["allocation.all.current"] == 1
        gpumem_alloc.audit()
    """)
    assert run.stderr == ""


def test_torchs_own_line_takes_it(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc
        torch.cuda.memory.change_current_allocator(gpumem_alloc.allocator(strategy="split"))
        assert gpumem_alloc.is_enabled()
        assert gpumem_alloc.options().strategy == "split"
        assert torch.ones(1000).cuda().cpu().sum() == 1000
    """)


def test_late_it_takes_over(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc
        x = torch.ones(1000).cuda()
        gpumem_alloc.enable()
        y = torch.ones(1000).cuda()
        assert gpumem_alloc.is_enabled()
        assert gpumem_alloc.stats()["allocation.all.current"] == 1
        assert (x.cpu() + y.cpu()).sum() == 2000
        del x, y
        gpumem_alloc.audit()
    """)


def test_late_it_says_that_what_is_old_is_not_isolated(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc
        x = torch.ones(1000).cuda()
        for _ in range(2):
            line = gpumem_alloc.enable(isolation="strict")
            assert "isolation:strict for new tensors only: older ones are not" in line, line
    """)
    bridged.run("""
        import torch, gpumem_alloc
        assert gpumem_alloc.enable(isolation="strict").endswith(", isolation:strict")
    """)


def test_late_it_takes_over_though_a_pool_has_used_it(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc
        ours = gpumem_alloc.allocator()
        x = torch.ones(1000).cuda()
        pool = torch.cuda.MemPool(ours.allocator())
        with torch.cuda.use_mem_pool(pool):
            y = torch.empty(1000, device="cuda")
        assert "stays with PyTorch" in gpumem_alloc.enable()
        z = torch.ones(1000).cuda()
        assert (x.cpu() + z.cpu()).sum() == 2000
        del x, y, z, pool
        assert torch.cuda.memory_allocated() == 0
        gpumem_alloc.audit()
    """)


def test_late_an_old_pool_serves_raw_memory_too(bridged: Machine) -> None:
    bridged.run("""
        import torch, gpumem_alloc
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = torch.ones(1000).cuda()
        gpumem_alloc.enable()
        with torch.cuda.use_mem_pool(pool):
            pointer = torch.cuda.caching_allocator_alloc(5000)
        assert gpumem_alloc.stats()["allocation.all.current"] == 0
        assert torch.cuda.memory_stats()["allocation.all.current"] == 2
        torch.cuda.caching_allocator_delete(pointer)
        assert torch.cuda.memory_stats()["allocation.all.current"] == 1
        assert x.cpu().sum() == 1000
    """)


def test_a_forked_child_is_refused(bridged: Machine) -> None:
    bridged.run("""
        import os, warnings, torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        x = torch.ones(10).cuda()
        warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)  # Python 3.12's
        child = os.fork()
        if child == 0:
            text = inside.raised(gpumem_alloc.AllocatorError, gpumem_alloc.enable)
            os._exit(0 if "spawn" in text else 3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert x.cpu().sum() == 10
    """)


def test_a_forked_child_is_refused_a_snapshot(bridged: Machine) -> None:
    bridged.run("""
        import os, torch, gpumem_alloc
        gpumem_alloc.enable()
        kept = torch.ones(1000).cuda()
        torch.cuda.memory._record_memory_history(stacks="python")
        child = os.fork()
        if child == 0:
            try:
                torch._C._cuda_memorySnapshot(None)
            except RuntimeError as error:
                os._exit(0 if "forked" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """)
