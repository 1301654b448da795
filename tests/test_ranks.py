"""Several ranks: programs that work together, equal addresses, the odd one, and the tables."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.ranks import launch, program
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
    assert equal[0]["reserved_peak_bytes"] == equal[1]["reserved_peak_bytes"]
    assert ranks_table.odd(equal) == {}
    assert set(ranks_table.odd(other)) == {0, 1}  # of two, neither is the usual one


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
        ({"places": "cc"}, "other addresses"),
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
    rows = [*(row(rank, "native", **slow) for rank in (0, 1)), row(0), row(1, losses=["0x1p+1"])]
    text = ranks_table.render(rows)
    assert "| ddp | ours, paged | 0 | 2.0 | 0.500 | 1,000 | 0.50 | 90 | equal | equal |" in text
    assert "| **differ** |" in text
    assert "| ddp | PyTorch default | 0 | 4.0 | 1.000 | 2,000 | 1.00 | 90 | – | equal |" in text
    assert ranks_table.render([]) == ""


def test_the_table_shows_a_cut_model_beside_the_whole_one() -> None:
    whole = {"step_ms": [9.0, 3.0, 3.0, 3.0], "losses": ["0x1p+1"], "live_peak_bytes": 160 * MIB}
    text = ranks_table.render([row(0), row(1, one_device=whole)])
    assert "| ddp | ours, paged | 4 | 2.0 | 3.0 | 90 | 160 | 5.0e-01 |" in text


def test_addresses_are_compared_from_each_streams_first() -> None:
    def entry(address: int, stream: int = 0, size: int = 512) -> dict[str, int]:
        return {"addr": address, "stream": stream, "size": size}

    here = program.addresses_of([entry(1000), entry(2000), entry(9000, 7)])
    there = program.addresses_of([entry(5000), entry(6000), entry(100, 8)])
    assert here["places"] == there["places"] != program.addresses_of([entry(1), entry(2)])["places"]
    assert here["addresses"] != there["addresses"]
