"""Several ranks: programs that work together, equal addresses, the odd one, and the tables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from benchmarks import cli
from benchmarks.asked import UsageError
from benchmarks.ranks import launch, measure, program
from benchmarks.report import ranks_table
from tests.rig.machine import Machine

MIB = 1 << 20
CUT = ("pipeline", "tensor_parallel")
TWO = {"RIG_DEVICES": "2", "GPUMEM_ALLOC_DOOR": "bridge"}


def on_rig(rig: Machine, programs: list[str], **options: Any) -> list[dict[str, Any]]:
    """Run two ranks, each on a stand-in card of its own; nothing there can talk to the other."""
    environment = rig.environment() | TWO
    return launch.run(
        programs, "paged", 2, backend="none", steps=4, seconds=60, environment=environment,
        **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def on_cpu() -> dict[tuple[str, int], dict[str, Any]]:
    """What two ranks did without a card: first a program that fails, then those of the bench."""
    names = ["tests.test_ranks:FAILS", *CUT, "ddp", "fsdp"]
    rows = launch.run(names, "cpu", 2, backend="gloo", steps=6, seconds=60)
    assert [(row["program"], row["rank"]) for row in rows] == [
        (name, rank) for name in names for rank in (0, 1)
    ]
    return {(row["program"], row["rank"]): row for row in rows}


def test_a_rank_that_fails_is_told_and_the_rest_goes_on(on_cpu: Any) -> None:
    failed = {place for place, row in on_cpu.items() if "error" in row}
    assert failed == {("tests.test_ranks:FAILS", 0), ("tests.test_ranks:FAILS", 1)}
    assert "of the test" in on_cpu["tests.test_ranks:FAILS", 1]["error"]


@pytest.mark.parametrize(("name", "most"), [("pipeline", 0.0), ("tensor_parallel", 1e-5)])
def test_a_model_that_is_cut_ends_as_on_one_device(on_cpu: Any, name: str, most: float) -> None:
    last = on_cpu[name, 1]
    assert ranks_table.difference(last) <= most
    assert last["losses"][0] != last["losses"][-1]


def test_both_ways_of_training_have_one_model_and_numbers(on_cpu: Any) -> None:
    for rank in (0, 1):
        assert on_cpu["ddp", rank]["losses"] == on_cpu["fsdp", rank]["losses"]
    assert on_cpu["ddp", 0]["losses"] != on_cpu["ddp", 1]["losses"]  # each has its own numbers


@pytest.mark.torch
@pytest.mark.usefixtures("bridge")
def test_equal_work_gets_equal_addresses_on_all_ranks(rig: Machine) -> None:
    rows = on_rig(rig, ["buffers", "tests.test_ranks:ODD"])
    assert [row.get("error") for row in rows] == [None] * 4
    equal, other = rows[:2], rows[2:]
    assert all(row["requests"] > 20 and row["reserved_peak_bytes"] > 24 * MIB for row in equal)
    assert equal[0]["places"] == equal[1]["places"]
    assert equal[0]["asked"] == equal[1]["asked"]
    assert equal[0]["reserved_peak_bytes"] == equal[1]["reserved_peak_bytes"]
    assert ranks_table.odd(equal) == {}
    assert ranks_table.odd(other) == dict.fromkeys((0, 1), "other requests")  # none is the usual


def uneven(rank: program.Rank) -> None:
    """A program whose ranks ask for different memory."""
    for _ in range(rank.steps):
        made = [
            rank.torch.empty((1 + rank.index) * MIB, dtype=rank.torch.uint8, device=rank.device)
            for _ in range(8)
        ]
        rank.mark(None)
        del made


def fails(rank: program.Rank) -> None:
    """A program that one rank does not get through."""
    rank.begin()
    if rank.index == 1:
        raise RuntimeError("of the test")
    rank.barrier()
    rank.mark(None)


ODD = program.Program(uneven, 4)
FAILS = program.Program(fails, 4)


def row(rank: int, allocator: str = "paged", **changes: Any) -> dict[str, Any]:
    """A rank's row as the worker prints it."""
    made: dict[str, Any] = {
        "program": "ddp", "allocator": allocator, "rank": rank, "ranks": 4, "round": 0,
        "is_alike": True, "step_ms": [9.0, 2.0, 2.0, 2.0], "losses": ["0x1p+0"],
        "live_peak_bytes": 90 * MIB, "reserved_peak_bytes": 100 * MIB, "places": "aa",
        "addresses": "bb", "card": {"peak_bytes": 1000 * MIB},
    }  # fmt: skip
    return made | changes


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"places": "cc"}, "other places"),
        ({"places": "cc", "asked": "x"}, "other requests"),
        ({"reserved_peak_bytes": 102 * MIB}, "another peak"),
        ({"card": {"peak_bytes": 1060 * MIB}}, "another peak of the card"),
        ({"card": {"peak_bytes": 1040 * MIB}}, None),
        ({"card": None}, None),
        ({"error": "gone"}, "failed"),
        ({"addresses": "dd"}, None),  # the driver may put memory elsewhere
    ],
)
def test_the_odd_rank_is_named(changes: dict[str, Any], why: str | None) -> None:
    rows = [row(rank, **(changes if rank == 2 else {})) for rank in range(4)]
    assert ranks_table.odd(rows) == ({} if why is None else {2: why})
    assert ranks_table.odd_ones(rows) == ([f"ddp, paged, round 0: rank 2: {why}"] if why else [])


def test_ranks_that_are_meant_to_differ_are_not_odd() -> None:
    rows = [row(rank, is_alike=False, places=str(rank)) for rank in range(4)]
    assert ranks_table.odd(rows) == {}


def test_the_table_compares_a_rank_with_natives() -> None:
    slow = {"step_ms": [9.0, 4.0, 4.0, 4.0], "card": {"peak_bytes": 2000 * MIB}}
    rows = [*(row(rank, "native", **slow) for rank in (0, 1)), row(0), row(1)]
    text = ranks_table.render(rows)
    assert "| ddp | ours, paged | 0 | 2.0 | 0.500 | 1,000 | 0.50 | 90 | equal | same add" in text
    assert "| ddp | PyTorch default | 0 | 4.0 | 1.000 | 2,000 | 1.00 | 90 | – | same add" in text
    assert ranks_table.render([]) == ""


@pytest.mark.parametrize(
    ("natives", "ours", "said"),
    [
        (["1"], "1", "equal"),
        (["1", "1"], "1", "equal"),
        (["1", "1"], "2", "**differ**"),
        (["1"], "2", "not comparable"),  # native may differ from itself
        (["1", "2"], "2", "not comparable"),
        ([], "1", "–"),
    ],
)
def test_losses_are_compared_where_natives_are_always_the_same(
    natives: list[str], ours: str, said: str
) -> None:
    mine = [row(0, losses=[ours], round=number) for number in range(2)]
    rows = [row(0, "native", losses=[each], round=n) for n, each in enumerate(natives)]
    assert ranks_table.losses([*rows, *mine], mine) == said


def test_the_table_shows_a_cut_model_beside_the_whole_one() -> None:
    whole = {"step_ms": [9.0, 3.0, 3.0, 3.0], "losses": ["0x1p+1"], "live_peak_bytes": 160 * MIB}
    text = ranks_table.render([row(0), row(1, one_device=whole)])
    assert "| ddp | ours, paged | 4 | 2.0 | 3.0 | 90 | 160 | 5.0e-01 |" in text


def test_a_run_goes_on_with_what_is_not_measured_yet(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[str, str]] = []
    fails = {("fsdp", "paged")}

    def run(programs: list[str], allocator: str, count: int, **_: Any) -> list[dict[str, Any]]:
        name = programs[0]
        started.append((name, allocator))
        error = {"error": "gone"} if (name, allocator) in fails else {}
        return [row(rank, allocator, program=name, ranks=count) | error for rank in range(count)]

    monkeypatch.setattr(launch, "run", run)
    monkeypatch.setattr(measure, "visible_devices", lambda: 2)
    out = tmp_path / "ranks.json"

    def bench(rounds: int, resume: bool) -> int:
        names, under = ["ddp", "fsdp"], ["native", "paged"]
        return measure.bench(names, under, None, rounds, None, out, False, resume)

    assert bench(1, resume=True) == measure.FAILED  # a file is not needed
    assert len(started) == 4
    fails.clear()
    assert bench(2, resume=True) == 0
    assert started[4:] == [("fsdp", "paged"), *((name, under) for name in ("ddp", "fsdp")
                                                for under in ("paged", "native"))]  # fmt: skip
    assert len(measure.kept(out)) == 16
    assert all("git_id" in each for each in measure.kept(out))  # others may go on with the file
    with pytest.raises(UsageError, match="is there already"):
        bench(1, resume=False)
    assert len(measure.kept(out)) == 16
    out.write_text("{}")
    with pytest.raises(UsageError, match="not a file of `bench ranks`"):
        bench(1, resume=True)


def test_a_tool_is_refused_before_anything_is_started() -> None:
    with pytest.raises(UsageError, match="memcheck is a tool"):
        measure.check(["ddp"], ["native", "memcheck"], 1)


class Torch(ModuleType):
    """A torch of this CUDA that sees so many devices."""

    def __init__(self, cuda: str | None, devices: int) -> None:
        super().__init__("torch")
        self.__version__ = "2.99.0"
        self.version = SimpleNamespace(cuda=cuda)
        self.cuda = SimpleNamespace(device_count=lambda: devices)


@pytest.mark.parametrize(
    ("torch", "why", "action"),
    [
        (None, "torch cannot be imported", "Install a CUDA build of torch"),
        (Torch(None, 0), "torch 2.99.0 is a build without CUDA", "Install a CUDA build of torch"),
        (Torch("13.0", 0), "torch sees no GPU (CUDA_VISIBLE_DEVICES is '')", "nvidia-smi"),
    ],
)
@pytest.mark.parametrize("arguments", [[], ["--ranks", "2"]])
def test_without_torch_or_a_gpu_it_is_said_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    arguments: list[str], torch: ModuleType | None, why: str, action: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert cli.main(["ranks", *arguments]) == cli.BAD_INPUT
    what, _, to_do = capsys.readouterr().err.splitlines()
    assert what.startswith(f"bench: nothing was measured: {why}")
    assert action in to_do
    assert list(tmp_path.iterdir()) == []


def test_more_ranks_than_devices_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch("13.0", 2))
    assert cli.main(["ranks", "--ranks", "3"]) == cli.BAD_INPUT
    assert "3 ranks need as many devices, and there are 2." in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch("13.0", 2))
    monkeypatch.setattr(launch, "run", lambda *_, **__: pytest.fail("a program was started"))
    for out, why in (("missing/ranks.json", "--out makes none"), (".", "Is a directory")):
        assert cli.main(["ranks", "--out", str(tmp_path / out)]) == cli.BAD_INPUT
        told = capsys.readouterr().err
        assert f"{tmp_path / out} cannot be written.\n" in told
        assert why in told
    assert list(tmp_path.iterdir()) == []


def test_places_are_compared_from_where_each_segment_begins() -> None:
    def entry(address: int, stream: int = 0, size: int = 512) -> dict[str, int]:
        return {"addr": address, "stream": stream, "size": size}

    def found(begins: list[int], made: list[dict[str, int]]) -> dict[str, Any]:
        return program.addresses_of(made, [{"address": at, "total_size": 4000} for at in begins])

    here = found([1000, 9000], [entry(2000), entry(1000), entry(9500, 7), entry(70_000)])
    there = found([20_000, 5000], [entry(6000), entry(5000), entry(20_500, 8), entry(90_000)])
    assert here["places"] == there["places"]
    assert here["asked"] == there["asked"]
    assert here["addresses"] != there["addresses"]
    other = found([1000, 9000], [entry(2000), entry(1512), entry(9500, 7), entry(70_000)])
    assert other["places"] != here["places"]
    assert other["asked"] == here["asked"]
    on_one = found([1000, 9000], [entry(2000), entry(1000), entry(9500), entry(70_000)])
    assert on_one["places"] == here["places"]
    assert on_one["asked"] != here["asked"]


# --- with NCCL, on GPUs ---------------------------------------------------------------------------

# Small chunks and no slack, so that memory moves.
CHECKED = {"native": "native", "ours": "paged:max_chunk_mb=2;slack_percent=0@bridge"}
CHECKS = ("MOVED", "REGISTERED_POOLS", "SYMMETRIC", "SYMMETRIC_POOL")


@pytest.fixture(scope="module")
def checked() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What two ranks found under each allocator: NCCL's checks, then those with a setting."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    setting = {"TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK": "1"}
    for name, allocator in CHECKED.items():
        for checks, environment in ((CHECKS, {}), (("NOT_REGISTERED",), setting)):
            programs = [f"tests.ranks.collectives:{check}" for check in checks]
            rows = launch.run(programs, allocator, 2, seconds=90, environment=environment)
            for each in rows:
                key = name, each["program"].rpartition(":")[2]
                found.setdefault(key, []).append(each)
    return found


@pytest.mark.gpu
@pytest.mark.gpus(2)
@pytest.mark.torch
@pytest.mark.usefixtures("bridge")
@pytest.mark.parametrize("check", [*CHECKS, "NOT_REGISTERED"])
@pytest.mark.parametrize("allocator", CHECKED)
def test_collectives_of_two_ranks(checked: Any, allocator: str, check: str) -> None:
    rows = checked[allocator, check]
    print([{key: value for key, value in row.items() if key != "card"} for row in rows])
    assert [row.get("error") for row in rows] == [None, None]


@pytest.mark.gpus(2)
@pytest.mark.torch
@pytest.mark.usefixtures("bridge")
def test_torchrun_needs_one_line(root: Path) -> None:
    """DDP under torchrun has the same losses with ours as without, to the last bit."""
    printed = []
    for allocator in ("native", "ours"):
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            str(root / "tests" / "ranks" / "under_torchrun.py"), allocator,
        ]  # fmt: skip
        environment = os.environ | {"NCCL_NVLS_ENABLE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=90, check=False
        )
        assert run.returncode == 0, run.stderr
        printed.append(run.stdout.split())
    native, ours = printed
    assert native[1:] == ours[1:]
    assert len(ours) == 7
    assert native[0] != ours[0]


@pytest.mark.torch
@pytest.mark.usefixtures("bridge")
def test_registration_of_all_memory_is_taken_back_where_memory_moves(rig: Machine) -> None:
    code = """
        import os, gpumem_alloc
        gpumem_alloc.enable(door="bridge", STRATEGY)
        print("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK" in os.environ)
    """
    setting = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
    for strategy, value, stays, told in (
        ("", "1", False, 1),
        ('isolation="tensor"', "1", False, 1),
        ('strategy="split"', "1", True, 0),
        ("", "0", True, 0),
    ):
        run = rig.run(code.replace("STRATEGY", strategy), env={setting: value})
        assert run.stdout.strip() == str(stays)
        assert run.stderr.count("is taken back") == told, run.stderr


def test_nothing_of_ours_asks_for_multicast(root: Path) -> None:
    texts = [path.read_text() for path in (root / "csrc").rglob("*") if path.is_file()]
    assert not any("cuMulticast" in text for text in texts)
