"""The benchmark's command: plan, lockstep, results files, interrupts, users' scripts."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks import cli, measure, replays, store
from benchmarks.passes import ahead, lockstep, plan, runner, script
from benchmarks.passes import room as rooms
from benchmarks.passes.lockstep import Group, groups
from benchmarks.passes.plan import Costs, Request, Task
from benchmarks.passes.progress import Show, one_line
from benchmarks.passes.room import Room
from benchmarks.report.summary import summarise
from benchmarks.store import Results, ResultsError, Row, Store
from benchmarks.workers.ballast import BallastError, Left
from benchmarks.workers.job import Job
from benchmarks.workloads import MAIN_WORKLOADS, WORKLOADS
from tests.rig.machine import Machine

GIB = 1 << 30
MACHINE: dict[str, Any] = {
    "gpu": "Card 9", "driver": "1", "torch": "2.11", "gpumem_alloc": "0", "git_id": "",
    "other_processes": 0, "cuda": "13.0",
}  # fmt: skip
QUIET = Console(quiet=True)


# Results files.


def add(path: Path, *rows: Row) -> Store:
    made = Store(path, "command", dict(MACHINE))
    made.add(*rows)
    return made


def row(kind: str = "times", allocator: str = "native", **changes: Any) -> Row:
    return {"kind": kind, "workload": "gnn", "allocator": allocator, "round": 0} | changes


def test_a_file_keeps_rows_of_all_sessions_and_merges(tmp_path: Path) -> None:
    path = tmp_path / "made" / "a.json"
    add(path, row(group=0), row(allocator="paged", group=0))
    add(path, row(group=1))
    assert [each["session"] for each in store.load(path).rows] == [0, 0, 1]
    merged = store.load_all([path, path])
    assert [each["session"] for each in merged.rows] == [0, 0, 1, 2, 2, 3]
    assert [each["group"] for each in merged.rows] == [0, 0, 1, 2, 2, 3]
    assert merged.environment(merged.rows[-1]) == MACHINE
    assert len(merged.sessions) == 4


def test_a_row_that_cannot_be_written_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    made = add(path, row())
    before = path.read_text()
    with pytest.raises(TypeError):
        made.add(row(strange=object()))
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "It is no JSON"),
        ("[]", "Its format is None"),
        ('{"format": 1, "rows": []}', "Its format is 1"),
        ('{"format": 2, "sessions": [], "rows": [{"kind": "peaks"}]}', "A row lacks its kind"),
        (
            '{"format": 2, "sessions": [], "rows": [{"kind": 1, "allocator": 1, "session": 0}]}',
            "A row lacks its kind",
        ),
        (
            '{"format": 2, "sessions": [{"environment": {}}], "rows": [{"kind": "peaks", '
            '"workload": "gnn", "allocator": "native", "session": "0"}]}',
            "A row lacks its kind",
        ),
        *(
            (
                '{"format": 2, "sessions": [{"environment": {}}], "rows": [{"kind": "peaks", '
                f'"workload": "gnn", "allocator": "native", "session": 0, {name}}}]}}',
                f"A row's {name[1 : name.index(':') - 1]} is no figure",
            )
            for name in (
                '"reserved_peak_bytes": "x"',
                '"step_ms": 1',
                '"step_ms": ["1"]',
                '"losses": [1.0]',
                '"card": 5',
                '"round": []',
            )
        ),
        ('{"format": 2, "sessions": [{}], "rows": []}', "A session lacks its environment"),
        ('{"format": 2, "sessions": 5, "rows": 7}', "Its sessions and rows are no lists"),
    ],
)
def test_what_is_no_results_file_is_refused_in_three_lines(
    tmp_path: Path, content: str, why: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(ResultsError) as raised:
        store.load(path)
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith(why)


# The plan.


def request(**changes: Any) -> Request:
    made = Request(("gnn", "streams"), ("native", "expandable", "cudaMallocAsync", "paged"))
    return replace(made, **changes)


def test_peaks_come_first_and_main_workloads_before_others() -> None:
    tasks = plan.make(request(limits_gb=(24, 80)))
    kinds = [(task.kind, task.workload) for task in tasks]
    assert [kind for kind, _ in kinds[:8]] == ["peaks"] * 8
    assert kinds[8:12] == [("times", "gnn"), ("losses", "gnn"), ("times", "gnn"), ("times", "gnn")]
    assert kinds[12:14] == [("times", "streams"), ("losses", "streams")]
    assert kinds[-2:] == [("times", "streams")] * 2
    assert [task.round for task in tasks if task.kind == "times"] == [0, 1, 2, 0, 1, 2]
    sized = [name for name in ("gnn", "streams") if WORKLOADS[name].sized]
    found = [(task.limit_gb, task.workload) for task in tasks if task.kind == "capacity"]
    assert found == [(limit, name) for limit in (24, 80) for name in sized]
    assert {kind for kind, _ in kinds} >= {"capacity", "no_margin"}
    (losses,) = [task for task in tasks if (task.kind, task.workload) == ("losses", "gnn")]
    assert losses.allocators == ("native", "paged", "native")
    assert {task.kind for task in plan.make(request(passes=("losses",)))} == {"losses"}
    assert plan.make(request(passes=("losses",), allocators=("native", "expandable"))) == []


def test_a_budget_leaves_out_what_comes_last() -> None:
    wanted = request(budget_s=120.0)
    costs = Costs(wanted)
    planned, left_out = plan.fitting(plan.make(wanted), costs, wanted.budget_s)
    assert planned
    assert sum(map(costs.seconds, planned)) <= 120.0
    assert {task.kind for task in left_out} >= {"capacity", "times"}
    text = plan.describe(planned, left_out, costs)
    assert "left out, the time does not reach:" in text
    assert "capacity" in text
    everything, nothing = plan.fitting(plan.make(wanted), costs, float("inf"))
    assert nothing == []
    assert "left out" not in plan.describe(everything, nothing, costs)


def test_costs_are_learned_from_rows_and_from_the_clock() -> None:
    costs = Costs(request(), cores=16)
    task = Task("peaks", "gnn", ("native",))
    guessed_s = costs.seconds(task)
    costs.learn([row("peaks", startup_s=1.0, step_ms=[2000.0, *[1000.0] * 9])])
    learned_s = costs.seconds(task)
    steps = WORKLOADS["gnn"].steps
    assert learned_s == pytest.approx(3.0 + steps + 0.3 * plan.IMPORTS_S)
    assert learned_s != guessed_s
    costs.note(task, 2 * learned_s)
    assert costs.seconds(task) == pytest.approx(2 * learned_s)
    assert costs.seconds(Task("times", "gnn", ("native", "paged"))) > learned_s  # its own kind


def test_a_tool_is_planned_for_as_slow_as_it_is() -> None:
    costs = Costs(request(), cores=16)
    plain, watched = Task("peaks", "gnn", ("native",)), Task("peaks", "gnn", ("memcheck",))
    steps = WORKLOADS["gnn"].steps
    costs.learn([row("peaks", startup_s=1.0, step_ms=[1000.0, *[20.0] * 9])])
    imports_s = 0.3 * plan.IMPORTS_S
    native_s = costs.seconds(plain)
    assert native_s == pytest.approx(imports_s + 2.0 + steps * 0.02)
    guessed_s = plan.TOOL_FIRST * 2.0 + plan.TOOL_STEP * steps * 0.02
    assert costs.seconds(watched) == pytest.approx(imports_s + guessed_s)
    both = Task("times", "gnn", ("native", "memcheck"))
    assert costs.seconds(both) == pytest.approx(
        guessed_s + 2 * (2.0 + steps * 0.02) + 3 * plan.IMPORTS_S
    )
    costs.learn([row("peaks", "memcheck", startup_s=3.0, step_ms=[4000.0, *[900.0] * 9])])
    assert costs.seconds(watched) == pytest.approx(imports_s + 7.0 + steps * 0.9)
    assert costs.seconds(plain) == native_s  # not learned from the tool's


def test_a_tool_is_in_peaks_and_times_only() -> None:
    tasks = plan.make(request(allocators=("native", "memcheck", "paged")))
    kinds = {task.kind for task in tasks if "memcheck" in task.allocators}
    assert kinds == {"peaks", "times"}
    assert {task.kind for task in tasks} > kinds
    only = request(allocators=("memcheck",), passes=("capacity", "no-margin"))
    assert plan.make(only) == []


# Lockstep.


def peak(reserved_gib: float, step_ms: float = 1.0) -> Row:
    return {"reserved_peak_bytes": int(reserved_gib * GIB), "step_ms": [step_ms] * 8}


PEAKS = {
    "native": peak(20),
    "expandable": peak(10, 2.0),
    "cudaMallocAsync": peak(10, 1.5),
    "paged": peak(10),
    "split64": peak(20),
}
NAMES = tuple(PEAKS)


def room(free_gib: float, host_gib: float | None = None) -> Room:
    host_bytes = None if host_gib is None else int(host_gib * GIB)
    return Room(int(free_gib * GIB), int(free_gib * GIB), host_bytes)


def test_native_the_fastest_other_and_ours_take_turns_where_they_fit() -> None:
    everyone = ("native", "cudaMallocAsync", "paged", "split64")
    assert groups(NAMES, PEAKS, room(80)) == [Group(everyone)]
    assert groups(NAMES, PEAKS, room(80, host_gib=64)) == [Group(everyone)]
    with_both = [Group(("native", "cudaMallocAsync", "paged"))]
    assert groups(NAMES, PEAKS, room(48)) == [*with_both, Group(("native", "split64"))]
    assert groups(NAMES, PEAKS, room(80, host_gib=16)) == [
        Group(("native", "cudaMallocAsync", "paged")),
        Group(("native", "cudaMallocAsync", "split64")),
    ]


def test_what_does_not_fit_together_runs_one_by_one() -> None:
    in_turn = Group(("native", "cudaMallocAsync", "split64"), in_lockstep=False)
    assert groups(NAMES, PEAKS, room(40)) == [Group(("native", "paged")), in_turn]
    everyone = ("native", "cudaMallocAsync", "paged", "split64")
    unknown = Room(None, None, None)
    assert groups(NAMES, PEAKS, unknown) == [Group(everyone, in_lockstep=False)]
    failed = {name: PEAKS[name] for name in ("native", "expandable")}
    assert groups(NAMES, failed, room(80)) == [Group(("native", "expandable"))]
    assert groups(NAMES, {"native": PEAKS["native"]}, room(80)) == []


def test_a_tool_is_in_turn_with_native_whatever_fits() -> None:
    peaks = {**PEAKS, "memcheck": peak(1)}
    watched = Group(("native", "memcheck"), in_lockstep=False)
    everyone = ("native", "cudaMallocAsync", "paged", "split64")
    assert groups(tuple(peaks), peaks, room(80)) == [Group(everyone), watched]
    two = ("native", "cudaMallocAsync", "memcheck")
    assert groups(two, peaks, room(80)) == [Group(two[:2]), watched]
    assert groups(("native", "memcheck"), peaks, room(80)) == [watched]
    in_turn = Group(("native", "cudaMallocAsync", "split64", "memcheck"), in_lockstep=False)
    assert groups(tuple(peaks), peaks, room(40)) == [Group(("native", "paged")), in_turn]
    alone = Group((*everyone, "memcheck"), in_lockstep=False)
    assert groups(tuple(peaks), peaks, Room(None, None, None)) == [alone]
    assert groups(("memcheck",), peaks, room(80)) == []
    beside_ours = Group(("paged", "memcheck"), in_lockstep=False)
    assert groups(("paged", "memcheck"), peaks, room(80)) == [beside_ours]


class FakeProcess:
    """A worker that runs so many steps at once, and notes what it is told."""

    def __init__(self, job: Job, log: list[str], outcome: dict[str, Any]) -> None:
        self.job = job
        self.log = log
        self.outcome = outcome
        self.steps = outcome.pop("steps", 3)
        self.is_alive = True
        self.answer: Callable[[Job], dict[str, Any]] = lambda job: self.outcome

    def resize(self, size: int) -> None:
        self.job = replace(self.job, size=size)
        self.outcome = self.answer(self.job)

    def wait_ready(self, seconds: float) -> bool:
        return True

    def wait_started(self, seconds: float) -> bool:
        return True

    def go(self) -> None:
        self.log.append(f"{self.job.allocator} goes")

    def stay_on(self, core: int) -> None:
        self.log.append(f"{self.job.allocator} on {core}")

    def turn(self, seconds: float = 1.0) -> tuple[int, float] | None:
        if self.steps == 0:
            return None
        self.steps -= 1
        self.log.append(self.job.allocator)
        return self.steps, 1.0

    def finish(self, seconds: float) -> Row:
        return self.job.row() | self.outcome

    def kill(self) -> None:
        self.is_alive = False


@pytest.mark.parametrize("cores", [2, 4])
def test_turns_reverse_at_every_step_and_go_on_without_who_fails(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    log: list[str] = []
    made: Any = [
        FakeProcess(Job("gnn", name, turns=True), log, {"steps": steps})
        for name, steps in (("native", 3), ("paged", 3), ("split", 1))
    ]
    rows = lockstep.take_turns(made, 10.0)
    assert [row["allocator"] for row in rows] == ["native", "paged", "split"]
    turns = [each for each in log if "goes" not in each]
    shared = ["split on 3", "paged on 3", "native on 3"] if cores == 4 else []
    assert sorted(turns[3 : 3 + len(shared)]) == sorted(shared)
    del turns[3 : 3 + len(shared)]
    assert turns == ["native", "paged", "split", "paged", "native", "native", "paged"]


# The runner.


class World:
    """Processes that do not exist; `fail` maps an allocator to its error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.log: list[str] = []
        self.jobs: list[Job] = []
        self.processes: list[FakeProcess] = []
        self.fail: dict[str, str] = {}
        self.before_start: Callable[[Job], None] = lambda job: None
        self.card_bytes = 2 * GIB
        self.largest = {"native": 50, "paged": 61}  # by what fits under any limit
        self.left_bytes: list[int] = []
        self.losses = {"paged": ["0x1p+0"]}
        self.path = path
        monkeypatch.setattr(runner, "start", self.start)
        monkeypatch.setattr(runner, "Ballast", lambda: nullcontext(self))
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2)))

    def start(self, job: Job) -> FakeProcess:
        self.before_start(job)
        self.jobs.append(job)
        process = FakeProcess(job, self.log, self.outcome(job))
        process.answer = self.outcome
        self.processes.append(process)
        return process

    def outcome(self, job: Job) -> dict[str, Any]:
        outcome: dict[str, Any] = {
            "startup_s": 0.1, "run_s": 1.0, "step_ms": [5.0, 1.0, 1.0, 1.0],
            "losses": self.losses.get(job.allocator, ["0x1p+0"]),
            "live_peak_bytes": (job.size or 1) * GIB, "reserved_peak_bytes": GIB,
            "card": {"peak_bytes": self.card_bytes, "start_bytes": 0} if job.card else None,
        }  # fmt: skip
        if job.size is not None and job.size > self.largest[job.allocator]:
            outcome = {"error": "CUDA out of memory", "out_of_memory": True}
        if job.allocator in self.fail:
            error = self.fail[job.allocator]
            outcome = {"error": error, "out_of_memory": "out of memory" in error}
        return outcome

    def leave(self, free_bytes: int) -> Left:
        """Fill the card but for so many bytes."""
        self.left_bytes.append(free_bytes)
        return Left(free_bytes, 0)

    def run(
        self, wanted: Request, free_gib: float = 80.0, known: Sequence[Row] = ()
    ) -> runner.Runner:
        made = Store(self.path, "c", dict(MACHINE))
        started: Any = runner.Runner(wanted, made, lambda: room(free_gib), Show(QUIET), known)
        started.run()
        return started  # type: ignore[no-any-return]

    def rows(self) -> list[Row]:
        return store.load(self.path).rows


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path / "results.json")


SMALL = request(
    workloads=("streams",), allocators=("native", "paged"), passes=("peaks", "times", "losses"),
    rounds=2,
)  # fmt: skip


def test_each_pass_makes_its_rows(world: World) -> None:
    world.run(SMALL)
    rows = world.rows()
    found = [(row["kind"], row["allocator"], row["round"], row["group"]) for row in rows]
    assert found == [
        ("peaks", "native", 0, None),
        ("peaks", "paged", 0, None),
        ("times", "native", 0, 0),
        ("times", "paged", 0, 0),
        ("losses", "native", 0, None),
        ("losses", "paged", 0, None),
        ("losses", "native", 1, None),
        ("times", "native", 1, 1),
        ("times", "paged", 1, 1),
    ]
    asked = {row["kind"]: row for row in rows}
    assert asked["peaks"]["card"]
    assert asked["peaks"]["driver_calls"]
    assert asked["times"]["turns"]
    assert asked["losses"]["deterministic"]
    assert asked["losses"]["steps"] == plan.LOSS_STEPS
    assert not any(process.is_alive for process in world.processes)


def test_losses_that_lack_memory_together_are_compared_alone(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))

    def crowd(job: Job) -> None:
        together = job.deterministic and sum(each.is_alive for each in world.processes)
        world.fail = {job.allocator: "CUDA out of memory"} if together else {}

    world.before_start = crowd
    world.run(replace(SMALL, passes=("peaks", "losses")))
    losses = [row for row in world.rows() if row["kind"] == "losses"]
    assert [row["allocator"] for row in losses] == ["native", "paged", "native"]
    assert not any("error" in row for row in losses)
    assert len(world.jobs) == 2 + 3 + 2  # two were repeated


def test_a_workload_without_losses_is_not_run_for_them(world: World) -> None:
    world.losses = {"native": [""], "paged": [""]}
    world.run(replace(SMALL, passes=("peaks", "losses")))
    assert {row["kind"] for row in world.rows()} == {"peaks"}


def test_without_room_times_alternate_in_turn(world: World) -> None:
    world.run(replace(SMALL, passes=("peaks", "times")), free_gib=4.0)
    times = [(row["allocator"], row["group"]) for row in world.rows() if row["kind"] == "times"]
    assert times == [("native", None), ("paged", None), ("paged", None), ("native", None)]


def told(world: World, wanted: Request, **more: Any) -> str:
    """Run, and return what was said."""
    said = io.StringIO()
    started: Any = runner.Runner(
        wanted, Store(world.path, "c", dict(MACHINE)), more.pop("room", lambda: room(80)),
        Show(Console(file=said, width=400)), **more,
    )  # fmt: skip
    started.run()
    return said.getvalue()


TIMES = replace(SMALL, passes=("times",), rounds=1)


def known_peak(allocator: str, **changes: Any) -> Row:
    made = row("peaks", allocator, workload="streams", steps=None, session=0)
    return made | peak(1.0) | changes


def test_times_without_peaks_run_in_turn_and_that_is_said_before(world: World) -> None:
    said = told(world, TIMES)
    assert {row["group"] for row in world.rows()} == {None}
    before, _, after = said.partition("[1/1")
    assert "times of streams: one allocator after the other, marked ° in tables:" in before
    assert "add peaks to --passes, or give --known FILE" in before
    assert "streams: one after the other: native, paged" in after


@pytest.mark.parametrize("passes", [("peaks", "times"), ("losses",)])
def test_nothing_is_said_of_turns_where_peaks_come_first(world: World, passes: Any) -> None:
    assert "after the other" not in told(world, replace(TIMES, passes=passes))


def test_rows_of_other_files_let_times_run_in_lockstep_and_stay_there(world: World) -> None:
    known = [known_peak("native"), known_peak("paged"), row(workload="streams", session=0)]
    assert "after the other" not in told(world, TIMES, known=known)
    rows = world.rows()
    assert [(row["kind"], row["allocator"], row["group"]) for row in rows] == [
        ("times", "native", 0), ("times", "paged", 0),
    ]  # fmt: skip
    assert world.jobs
    count = len(world.jobs)
    told(world, TIMES, known=known)
    assert len(world.jobs) == count  # it is done


@pytest.mark.parametrize(
    "second",
    [
        known_peak("paged", steps=2),  # of a smoke run
        known_peak("paged", error="exit code 1: boom"),  # perhaps of another version
        known_peak("paged", workload="gnn"),
        known_peak("split"),
    ],
)
def test_who_is_not_known_is_timed_all_the_same(world: World, second: Row) -> None:
    wanted = replace(TIMES, passes=("times", "losses"))
    said = told(world, wanted, known=[known_peak("native"), second])
    assert "times of streams: one allocator after the other" in said
    found = [(row["kind"], row["allocator"], row["group"]) for row in world.rows()]
    assert found[:2] == [("times", "native", None), ("times", "paged", None)]
    assert [name for kind, name, _ in found if kind == "losses"] == ["native", "paged", "native"]


@pytest.mark.parametrize("passes", [("times",), ("peaks", "times")])
def test_one_allocator_alone_is_timed_without_talk_of_turns(world: World, passes: Any) -> None:
    wanted = replace(TIMES, allocators=("paged",), passes=passes)
    assert "after the other" not in told(world, wanted)
    assert [row["kind"] for row in world.rows()] == list(passes)
    assert "after the other" not in told(world, wanted)
    assert len(world.rows()) == len(passes)  # it is done


def test_one_allocator_that_failed_is_not_timed(world: World) -> None:
    world.fail["paged"] = "exit code 1: boom"
    told(world, replace(TIMES, allocators=("paged",), passes=("peaks", "times")))
    assert [row["kind"] for row in world.rows()] == ["peaks"]


def test_what_keeps_runs_from_lockstep_is_said(world: World) -> None:
    known = [known_peak("native"), known_peak("paged")]
    said = told(world, TIMES, known=known, room=lambda: room(4))
    assert "together they take 4.0 GiB, free are 4.0" in said
    unknown = Room(None, None, None)
    said = told(world, replace(TIMES, rounds=2), known=known, room=lambda: unknown)
    assert "nothing says how much of the card is free" in said
    assert "python -m pip install nvidia-ml-py" in said


WATCHED = replace(
    SMALL, allocators=("native", "no-caching", "memcheck"), passes=("peaks", "times"), rounds=2
)


def test_a_tool_runs_after_native_while_the_others_take_turns(world: World) -> None:
    said = told(world, WATCHED)
    found = [(row["allocator"], row["round"], row["group"]) for row in world.rows()]
    assert found[:3] == [("native", 0, None), ("no-caching", 0, None), ("memcheck", 0, None)]
    assert found[3:] == [
        ("native", 0, 0), ("no-caching", 0, 0), ("native", 0, None), ("memcheck", 0, None),
        ("native", 1, 1), ("no-caching", 1, 1), ("memcheck", 1, None), ("native", 1, None),
    ]  # fmt: skip
    assert "streams: one after the other: native, memcheck; a tool that watches" in said
    peaks = {row["allocator"]: row for row in world.rows()[:3]}
    assert peaks["native"]["driver_calls"]
    assert not peaks["memcheck"]["driver_calls"]
    count = len(world.jobs)
    told(world, WATCHED)
    assert len(world.jobs) == count  # it is done


def test_a_tools_run_may_take_longer(world: World) -> None:
    begun = world.run(replace(SMALL, passes=("peaks",)))
    assert begun.limit_s("native") == runner.RUN_SECONDS
    assert begun.limit_s("memcheck") == runner.TOOL_RUN_SECONDS
    begun.request = replace(begun.request, budget_s=0.0)
    assert begun.limit_s("memcheck") == runner.LEAST_SECONDS


def test_a_file_that_is_complete_is_left_alone(world: World) -> None:
    world.run(SMALL)
    count = len(world.jobs)
    world.run(SMALL)
    assert len(world.jobs) == count
    world.run(replace(SMALL, rounds=3))
    assert [row["round"] for row in world.rows()[-2:]] == [2, 2]
    assert len(world.jobs) == count + 2


def test_an_interrupted_run_keeps_its_rows_and_goes_on(world: World) -> None:
    def interrupt(job: Job) -> None:
        if job.deterministic and len(world.jobs) == 5:
            raise measure.Interrupted

    world.before_start = interrupt
    with pytest.raises(measure.Interrupted):
        world.run(SMALL)
    assert [row["kind"] for row in world.rows()] == ["peaks", "peaks", "times", "times"]
    assert not any(process.is_alive for process in world.processes)
    world.before_start = lambda job: None
    world.run(SMALL)
    kinds = [row["kind"] for row in world.rows()]
    assert kinds == ["peaks"] * 2 + ["times"] * 2 + ["losses"] * 3 + ["times"] * 2


def test_runs_in_turn_are_kept_one_by_one(world: World) -> None:
    def interrupt(job: Job) -> None:
        if len(world.jobs) == 1:
            raise measure.Interrupted

    world.before_start = interrupt
    wanted = replace(SMALL, passes=("times",), rounds=1)
    with pytest.raises(measure.Interrupted):
        world.run(wanted)
    assert [row["allocator"] for row in world.rows()] == ["native"]
    world.before_start = lambda job: None
    world.run(wanted)  # those that are compared are of one session
    assert [row["allocator"] for row in world.rows()] == ["native", "native", "paged"]


def test_runs_in_turn_end_with_the_budget(world: World) -> None:
    def late(job: Job) -> None:
        world.fail[job.allocator] = "no end after 20 s"
        begun.begin -= 1000.0

    begun = runner.Runner(
        replace(SMALL, passes=("times",), budget_s=100.0, rounds=1),
        Store(world.path, "c", dict(MACHINE)), lambda: room(80), Show(QUIET),
    )  # fmt: skip
    world.before_start = late
    begun.run()
    assert len(world.jobs) == 1
    assert begun.store.mine() == []


def test_a_failed_run_is_a_row_and_the_rest_goes_on(world: World) -> None:
    world.fail["paged"] = "exit code 1: boom"
    world.run(replace(SMALL, allocators=("native", "expandable", "paged")))
    rows = world.rows()
    assert [row.get("error") for row in rows if row["allocator"] == "paged"] == [
        "exit code 1: boom"
    ]
    assert [row["allocator"] for row in rows if row["kind"] == "times"] == [
        "native", "expandable", "native", "expandable",
    ]  # fmt: skip


def test_a_run_that_only_ran_out_of_the_budget_is_no_row(world: World) -> None:
    def late(job: Job) -> None:
        world.fail[job.allocator] = "no end after 20 s"
        begun.begin -= 1000.0

    wanted = replace(SMALL, passes=("peaks",), budget_s=100.0)
    begun = runner.Runner(
        wanted, Store(world.path, "c", dict(MACHINE)), lambda: room(80), Show(QUIET)
    )
    world.before_start = late
    begun.run()
    assert begun.store.mine() == []
    assert [str(task) for task in begun.left_out] == [
        "peaks: streams, native", "peaks: streams, paged",
    ]  # fmt: skip


def test_imports_run_ahead_on_a_machine_with_cores(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    alive: list[int] = []
    world.before_start = lambda job: alive.append(sum(each.is_alive for each in world.processes))
    world.run(replace(SMALL, rounds=1))
    assert max(alive) >= 2
    assert len(world.jobs) == 2 + 2 + 3  # and none was started in vain
    assert not any(process.is_alive for process in world.processes)
    assert len(world.rows()) == 7


def test_what_was_started_in_vain_ends(world: World) -> None:
    starts: Any = world.start
    started: Any = ahead.Ahead(16, starts)
    first, second = Job("gnn", "native"), Job("gnn", "paged")
    started.prepare([first, first])
    started.prepare([second])
    assert [process.is_alive for process in world.processes] == [False, False, True]
    with started.taken([second]) as taken:
        assert taken == world.processes[2:]
    started.prepare([first])
    started.end_all()
    assert not any(process.is_alive for process in world.processes)
    few = ahead.Ahead(4, starts)
    few.prepare([first])
    assert len(world.processes) == 4


def test_an_interrupt_ends_what_was_started_ahead(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    def interrupt(row: object) -> None:
        if sum(process.is_alive for process in world.processes):
            raise measure.Interrupted

    monkeypatch.setattr(Show, "rows", lambda show, rows: interrupt(rows))
    with pytest.raises(measure.Interrupted):
        world.run(SMALL)
    assert len(world.jobs) == 2
    assert not any(process.is_alive for process in world.processes)


LIMITED = request(
    workloads=("kv",), allocators=("native", "paged"), passes=("peaks", "capacity", "no-margin"),
    limits_gb=(80,),
)  # fmt: skip


def test_capacity_and_no_margin_run_with_the_card_filled(world: World) -> None:
    world.run(LIMITED)
    rows = {(row["kind"], row["allocator"]): row for row in world.rows()}
    assert rows["capacity", "native"]["size"] == 50
    assert rows["capacity", "paged"]["size"] == 61
    assert {row["limit_gb"] for row in rows.values() if row["kind"] == "capacity"} == {80}
    assert rows["no_margin", "paged"]["fits"] is True
    # base is the card's peak less what was reserved
    assert set(world.left_bytes) == {80 * GIB, 1 * GIB + round(1.02 * GIB)}
    count = len(world.jobs)
    world.run(LIMITED)
    assert len(world.jobs) == count


def test_a_search_that_was_cut_short_is_taken_up_again(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    capacity = replace(LIMITED, passes=("capacity",), limits_gb=(None,))
    with monkeypatch.context() as once:
        looks = iter([100.0] * 12)
        once.setattr(runner.Runner, "left_s", lambda _: next(looks, 0.0))
        once.setattr(Costs, "seconds", lambda *_: 0.0)
        world.run(capacity)
    (cut,) = world.rows()
    assert not cut["complete"]
    world.run(capacity)
    rows = world.rows()
    assert [(row["allocator"], row["complete"]) for row in rows] == [
        ("paged", True), ("native", True),
    ]  # fmt: skip
    assert rows[0]["tries"][: len(cut["tries"])] == cut["tries"]


def test_a_search_is_saved_after_every_try(world: World) -> None:
    def interrupt(job: Job) -> None:
        if len(world.jobs) == 3:
            raise measure.Interrupted

    wanted = replace(LIMITED, passes=("capacity",))
    world.before_start = interrupt
    with pytest.raises(measure.Interrupted):
        world.run(wanted)
    (row,) = world.rows()
    assert (len(row["tries"]), row["complete"], row["limit_gb"]) == (3, False, 80)
    world.before_start = lambda job: None
    world.run(wanted)
    done = {row["allocator"]: row for row in world.rows()}
    assert done["paged"]["tries"][:3] == row["tries"]
    assert [done[name]["size"] for name in ("paged", "native")] == [61, 50]
    assert len(world.rows()) == 2


def test_searches_with_workers_ahead_try_the_same(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    wanted = replace(LIMITED, passes=("capacity",), limits_gb=(40, 80))
    world.run(wanted)
    plain = [(row["allocator"], row["tries"][-1]["size"]) for row in world.rows()]
    count, world.jobs = len(world.jobs), []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    world.path = world.path.with_name("other.json")
    world.run(wanted)
    assert [(row["allocator"], row["tries"][-1]["size"]) for row in world.rows()] == plain
    assert count < len(world.jobs) <= count + 12
    assert not any(process.is_alive for process in world.processes)


def test_a_search_is_begun_where_a_part_of_it_fits() -> None:
    wanted = replace(LIMITED, passes=("capacity", "no-margin"))
    tasks, costs = plan.make(wanted), Costs(wanted)
    (search_s,) = [costs.seconds(task) for task in tasks if task.kind == "capacity"]
    planned, left_out = plan.fitting(tasks, costs, 0.5 * search_s)
    assert [task.kind for task in planned] == ["capacity"]
    assert [task.kind for task in left_out] == ["no_margin"] * 2
    planned, _ = plan.fitting(tasks, costs, 0.2 * search_s)
    assert "capacity" not in [task.kind for task in planned]


def test_no_margin_takes_the_peaks_of_another_file(world: World) -> None:
    world.run(replace(LIMITED, passes=("peaks",)))
    known = world.rows()
    world.path = world.path.with_name("other.json")
    wanted = replace(LIMITED, passes=("no-margin",))
    world.run(wanted)
    assert not world.path.exists() or world.rows() == []  # nothing says what is needed
    world.run(wanted, known=known)
    assert [(row["kind"], row["fits"]) for row in world.rows()] == [("no_margin", True)] * 2


def test_a_card_that_cannot_be_filled_leaves_the_part_out(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    def leave(free_bytes: int) -> Left:
        raise BallastError("in use")

    monkeypatch.setattr(world, "leave", leave)
    world.run(LIMITED)
    assert {row["kind"] for row in world.rows()} == {"peaks"}


def test_a_smoke_run_does_not_stand_for_a_whole_one(world: World) -> None:
    peaks = replace(SMALL, passes=("peaks",))
    world.run(replace(peaks, is_smoke=True))
    world.run(peaks)
    smoke = WORKLOADS["streams"].smoke_steps
    assert [row["steps"] for row in world.rows()] == [smoke, smoke, None, None]


# The command.


def bench(*arguments: str) -> int:
    return cli.main(list(arguments), "bench")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, world: World) -> World:
    """A machine with a card, for the whole command."""
    monkeypatch.setattr(measure, "environment", lambda: dict(MACHINE))
    monkeypatch.setattr(rooms, "ask", lambda: room(80))
    monkeypatch.setenv("GPUMEM_ALLOC_DOOR", "stock")  # no build
    return world


RUN = ("--workloads", "streams", "--allocators", "native,paged", "--rounds", "1")


def test_the_command_measures_shows_and_says_where(
    card: World, capsys: pytest.CaptureFixture[str]
) -> None:
    passes = ("--passes", "peaks,times,losses")
    assert bench(*RUN, *passes, "--out", str(card.path), "--json") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["format"] == 2
    assert len(found["rows"]) == 7
    assert {entry["allocator"] for entry in found["summary"][0]["entries"]} == {"native", "paged"}
    assert "plan: 4 parts" in shown.err
    assert f"results: {card.path}" in shown.err
    assert bench(*RUN, "--out", str(card.path)) == cli.BAD_INPUT
    assert "is there already" in capsys.readouterr().err
    assert bench("show", str(card.path), str(card.path)) == 0
    assert "paged" in capsys.readouterr().out


def test_a_change_past_the_threshold_is_exit_code_3(
    card: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    for path in (before, after):
        assert bench(*RUN, "--passes", "peaks", "--out", str(path)) == 0
        card.card_bytes *= 2
    assert bench("compare", str(before), str(before)) == 0
    assert bench("compare", str(before), str(after)) == cli.CHANGED
    assert bench("compare", str(before), str(after), "--threshold", "1000") == 0
    capsys.readouterr()
    assert bench("compare", str(before), str(after), "--json") == cli.CHANGED
    assert json.loads(capsys.readouterr().out)["changed"] is True


def test_known_peaks_are_those_of_such_a_card(
    monkeypatch: pytest.MonkeyPatch, card: World, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    known = str(tmp_path / "known.json")
    assert bench(*RUN, "--passes", "peaks", "--out", known) == 0
    times = ("--passes", "times", "--known", known)
    assert bench(*RUN, *times, "--out", str(card.path)) == 0
    assert [(row["kind"], row["group"]) for row in card.rows()] == [("times", 0)] * 2
    assert "after the other, marked" not in capsys.readouterr().err
    monkeypatch.setattr(measure, "environment", lambda: MACHINE | {"gpu": "Card 10"})
    assert bench(*RUN, *times, "--out", str(tmp_path / "other.json")) == 0
    assert "one allocator after the other, marked" in capsys.readouterr().err


@pytest.mark.parametrize("way", ["losses", "error"])
def test_a_wrong_or_failed_run_of_ours_is_exit_code_1(
    card: World, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    if way == "losses":
        card.losses["paged"] = ["0x1p+1"]
    else:
        card.fail["paged"] = "exit code 1: boom"
    passes = ("--passes", "peaks,losses")
    assert bench(*RUN, *passes, "--out", str(card.path)) == measure.FAILED
    assert "wrong: streams, paged: " in capsys.readouterr().err


def test_ctrl_c_is_exit_code_130_and_says_how_to_go_on(
    card: World, capsys: pytest.CaptureFixture[str]
) -> None:
    def press(job: Job) -> None:
        if card.jobs:
            os.kill(os.getpid(), 2)

    card.before_start = press
    assert bench(*RUN, "--passes", "peaks", "--out", str(card.path)) == measure.INTERRUPTED
    assert f"rows kept: 1; go on with --resume --out {card.path}" in capsys.readouterr().err
    card.before_start = lambda job: None
    again = ("--passes", "peaks", "--resume", "--out", str(card.path))
    assert bench(*RUN, *again) == 0
    assert [each["allocator"] for each in card.rows()] == ["native", "paged"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workloads", "gmn"), "--workloads: gmn is not known; near it is gnn"),
        (("--allocators", "pagde"), "near it is paged"),
        (("--passes", "peeks"), "--passes: peeks is not known; near it is peaks"),
        (("--allocators", ""), "--allocators names nothing"),
        (("gnn",), "No such command 'gnn'.\nA command of your own comes after --"),
        (("--budget", "-1"), "--budget: -1 minutes are no time"),
        (("--budget", "nan"), "--budget: nan minutes are no time"),
        (("--limit", "0"), "--limit"),
        (("compare", "a.json", "b.json", "--threshold", "-1"), "--threshold"),
        (("--nope",), "No such option"),
        (("--rounds", "0"), "rounds"),
        (("show", "nothing.json"), "nothing.json cannot be used as results"),
        (("--known", "nothing.json"), "nothing.json cannot be used as results"),
    ],
)
def test_bad_input_is_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], said: str
) -> None:
    assert bench(*arguments) == cli.BAD_INPUT
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--out", "--html", "--pictures"])
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    card: World, capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    (tmp_path / "file").touch()
    assert bench(*RUN, option, str(tmp_path / "file" / "made")) == cli.BAD_INPUT
    assert f"{tmp_path}/file/made" in capsys.readouterr().err
    assert bench(*RUN, "--resume", "--out", str(tmp_path)) == cli.BAD_INPUT
    assert f"{tmp_path} cannot be written.\nIs a directory." in capsys.readouterr().err
    assert bench(*RUN, "--out", str(tmp_path)) == cli.BAD_INPUT
    assert f"{tmp_path} cannot be written.\nIs a directory." in capsys.readouterr().err
    assert card.jobs == []


def test_a_folder_that_is_missing_is_not_made(
    card: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "missing" / "results.json"
    for more in ([], ["--resume"]):
        assert bench(*RUN, *more, "--out", str(out)) == cli.BAD_INPUT
        told = capsys.readouterr().err
        assert f"bench: {out} cannot be written.\nThere is no folder {out.parent}" in told
    assert not out.parent.exists()
    assert card.jobs == []


def test_a_report_that_cannot_be_written_is_bad_input(
    card: World, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert bench(*RUN, "--passes", "peaks", "--out", str(card.path)) == 0
    assert bench("report", str(card.path), "-o", str(tmp_path)) == cli.BAD_INPUT
    assert f"{tmp_path} cannot be written" in capsys.readouterr().err


def test_names_may_have_spaces_and_what_is_left_out_is_told_in_few_lines(
    card: World, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--workloads", "streams, kv", "--allocators", "native, paged")
    assert bench(*run, "--budget", "0.01", "--out", str(card.path)) == measure.FAILED
    told = capsys.readouterr().err
    assert "left out, the time was over:\n  peaks        4 × streams, kv" in told
    assert f"go on with --resume --out {card.path}" in told


@pytest.mark.parametrize(
    "asked",
    [
        ("--workloads", "streams", "--passes", "capacity"),
        ("--passes", "losses", "--allocators", "native,expandable"),
    ],
)
def test_passes_that_measure_nothing_are_refused(
    card: World, capsys: pytest.CaptureFixture[str], asked: tuple[str, ...]
) -> None:
    assert bench(*asked, "--out", str(card.path)) == cli.BAD_INPUT
    assert "measures nothing of this" in capsys.readouterr().err


def test_smoke_is_short(card: World) -> None:
    assert bench("--smoke", "--out", str(card.path)) == 0
    rows = card.rows()
    assert {row["workload"] for row in rows} == set(plan.SMOKE_WORKLOADS)
    assert max(row["steps"] for row in rows) <= max(
        WORKLOADS[name].smoke_steps for name in plan.SMOKE_WORKLOADS
    )


def test_without_a_gpu_it_replays_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "environment", lambda: MACHINE | {"gpu": None})
    monkeypatch.setattr(replays, "bundled", lambda: [replays.TRACES / "prefetch_train.pickle.gz"])
    assert bench("--pictures", str(tmp_path / "made")) == 0
    shown = capsys.readouterr()
    assert "native-expandable" in shown.out
    assert shown.err.startswith("no GPU was found: recorded runs are replayed")
    assert "without effect" not in shown.err
    assert bench("--workloads", "gnn", "--html", str(tmp_path / "a.html")) == 0
    assert "without effect on a replay: --workloads, --html" in capsys.readouterr().err
    assert (tmp_path / "made" / "replay.png").read_bytes().startswith(b"\x89PNG")
    assert bench("--require-gpu") == cli.BAD_INPUT
    assert "nothing was measured: no GPU was found" in capsys.readouterr().err
    for field, why in (("torch", "torch is not installed"), ("cuda", "a build without CUDA")):
        monkeypatch.setattr(measure, "environment", lambda field=field: MACHINE | {field: None})
        assert bench("--", "python", "train.py") == cli.BAD_INPUT
        assert why in capsys.readouterr().err
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(b"no pickle")
    assert bench("--trace", str(broken)) == cli.BAD_INPUT
    assert "broken.pickle cannot be replayed" in capsys.readouterr().err


def test_rows_are_told_in_a_line() -> None:
    told = one_line(row("peaks", "paged", door="bridge", live_peak_bytes=GIB, step_ms=[2.0]))
    assert " ".join(told.split()) == "gnn paged (bridge) live 1,024 MiB, step 2.00 ms"
    assert "boom" in one_line(row("peaks", "paged", error="boom"))


# Users' programs.


def test_a_command_is_called_by_its_script() -> None:
    assert script.name_of(["/usr/bin/python3", "-u", "/home/me/train.py", "--n", "8"]) == (
        "train.py --n 8"
    )
    assert script.name_of(["torchrun", "x/train.py"]) == "train.py"
    assert script.name_of(["./go", "now"]) == "go now"


# What the hook needs of torch, without its import of seconds.
FAKE_TORCH = {
    "__init__.py": "from torch import optim, cuda",
    "cuda.py": """
        def is_initialized(): return True
        def memory_stats(): return {"allocated_bytes.all.peak": 5, "num_ooms": 0}
        """,
    "optim/__init__.py": "",
    "optim/optimizer.py": """
        hooks = []
        register_optimizer_step_post_hook = hooks.append
        """,
}
PROGRAM = """
    import subprocess, sys
    import benchmarks
    import torch
    from torch.optim import optimizer
    assert benchmarks.__file__.startswith(sys.argv[1]), benchmarks.__file__
    assert sys.users_own, "the user's sitecustomize did not run"
    for _ in range(int(sys.argv[2])):
        for hook in optimizer.hooks:
            hook(None, (), {})
    if len(sys.argv) == 3:
        subprocess.run([sys.executable, __file__, sys.argv[1], "7", "child"], check=True)
    """


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command whose folder has a torch, a sitecustomize and a package `benchmarks` of its own."""
    files = {f"torch/{name}": text for name, text in FAKE_TORCH.items()}
    files |= {"benchmarks/__init__.py": "", "train.py": PROGRAM}
    files["sitecustomize.py"] = "import sys\nsys.users_own = True"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return [sys.executable, str(tmp_path / "train.py"), str(tmp_path), "3"]


def test_a_program_and_its_children_are_measured(program: list[str]) -> None:
    made = script.run(program, "native")
    assert "error" not in made, made
    assert made["exit_code"] == 0
    assert len(made["step_ms"]) == 7  # the child's: it made the most
    assert made["live_peak_bytes"] == 5
    assert made["reserved_peak_bytes"] is None
    assert made["processes"] == 2


def test_a_program_is_started_through_a_tool(
    monkeypatch: pytest.MonkeyPatch, program: list[str], tmp_path: Path
) -> None:
    stand_in = tmp_path / "compute-sanitizer"
    stand_in.write_text(SANITIZER)
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FOUND", "0")
    made = script.run(program, "memcheck")
    assert "error" not in made, made
    assert made["command"] == program
    monkeypatch.setenv("FOUND", "2")
    made = script.run(program, "memcheck")
    assert made["error"] == "exit code 9: ========= ERROR SUMMARY: 2 errors"


def test_what_a_tool_lacks_is_not_asked_of_pip(
    card: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    run = ("--workloads", "streams", "--allocators", "native,memcheck", "--passes", "peaks")
    assert bench(*run, "--install", "--out", str(card.path)) == 0
    said = capsys.readouterr().err
    assert "memcheck: left out, it needs: a CUDA toolkit's compute-sanitizer\n" in said
    assert "installing" not in said


def test_a_failed_program_keeps_the_end_of_its_output(program: list[str]) -> None:
    made = script.run([*program[:-1], "many"], "native")
    assert made["error"].startswith("exit code 1: ValueError: invalid literal")
    assert "Traceback" in made["output"]
    missing = script.run(["/no/such/program"], "native")
    assert missing["error"] == "exit code 127: /no/such/program: No such file or directory"


def test_a_program_that_was_not_reached_is_no_measurement(program: list[str]) -> None:
    made = script.run([sys.executable, "-I", "-c", "print(1)"], "paged")
    assert made["error"] == script.NOT_REACHED


def test_rounds_of_a_command_alternate_and_resume(
    monkeypatch: pytest.MonkeyPatch, card: World, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def run(command: Sequence[str], allocator: str) -> Row:
        asked.append(allocator)
        return {"step_ms": [1.0]} | ({"error": "boom"} if allocator == "expandable" else {})

    monkeypatch.setattr(script, "run", run)
    options = ["--allocators", "native,expandable,paged", "--rounds", "2", "--resume"]
    options += ["--out", str(card.path)]
    command = [sys.executable, "train.py", "--resume"]
    assert bench(*options, "--", *command) == 0
    assert asked == ["native", "expandable", "paged", "paged", "native"]
    assert card.rows()[0]["command"] == command
    bench(*options, "--", *command)
    assert len(asked) == 5  # done; also what failed
    assert "without effect" not in capsys.readouterr().err
    bench(*options, "--passes", "peaks", "--limit", "4", "--", *command)
    assert "without effect on a command: --passes, --limit" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["/no/such/program", "x"]])
def test_a_command_that_is_no_program_is_bad_input(
    card: World, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert bench("--out", str(card.path), "--", *command) == cli.BAD_INPUT
    assert "that is no program here" in capsys.readouterr().err
    assert not card.path.exists()


def test_a_command_that_fails_everywhere_is_not_laid_on_ours_alone(
    monkeypatch: pytest.MonkeyPatch, card: World, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "run", lambda command, allocator: {"error": "exit code 1: boom"})
    options = ["--allocators", "native,paged", "--out", str(card.path)]
    assert bench(*options, "--", sys.executable, "train.py") == measure.FAILED
    shown = capsys.readouterr()
    assert "[1/2] native, round 1" in shown.err
    assert "wrong: train.py, paged: exit code 1: boom (under PyTorch's default it fails too)" in (
        shown.err
    )
    assert "train.py, native: exit code 1: boom" in shown.out


# As it is used.


def test_the_main_workloads_exist_and_say_what_is_unordered() -> None:
    assert set(MAIN_WORKLOADS) < set(WORKLOADS)
    assert set(plan.SMOKE_WORKLOADS) < set(WORKLOADS)
    assert all(WORKLOADS[name].unordered for name in MAIN_WORKLOADS)


def test_the_benchmarks_are_installed_in_the_package(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "build_py"]
    subprocess.run([*command, "-d", tmp_path], cwd=root, check=True, capture_output=True)
    installed = tmp_path / "gpumem_alloc" / "benchmarks"
    found = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    sources = {
        str(path.relative_to(root / "benchmarks"))
        for suffix in ("*.py", "*.cpp", "*.h", "*.html")
        for path in (root / "benchmarks").rglob(suffix)
        if "out" not in path.parts
    }
    assert sources <= found
    assert "traces/gnn.pickle.gz" in found
    assert not [name for name in found if name.startswith(("results/", "out/"))]
    assert sum((installed / name).stat().st_size for name in found) < 2 << 20


@pytest.mark.torch
def test_the_whole_command_runs_on_a_card(machine: Machine, tmp_path: Path) -> None:
    """Also where the current folder has a package of the same name."""
    out = tmp_path / "results.json"
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    done = machine.run_fresh(
        f"""
        import os, sys
        os.chdir({str(tmp_path)!r})
        from gpumem_alloc.cli import main
        main("bench --workloads buffers --allocators paged --passes peaks --out {out}".split())
        """
    )
    assert "buffers" in done.stdout
    (made,) = store.load(out).rows
    assert made["door"] == machine.door
    assert len(made["step_ms"]) == WORKLOADS["buffers"].steps
    assert store.load(out).sessions[0]["command"].startswith("python -m gpumem_alloc")


SANITIZER = """\
#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift 2; done
echo "========= COMPUTE-SANITIZER"
"$@" || exit $?
echo "========= ERROR SUMMARY: ${FOUND} errors"
[ "$FOUND" = 0 ] || exit 9
"""


@pytest.mark.torch
@pytest.mark.parametrize("errors", [0, 2])
def test_memcheck_is_measured_after_native(rig: Machine, tmp_path: Path, errors: int) -> None:
    """With a stand-in for compute-sanitizer, that says what it would and starts the worker."""
    stand_in = tmp_path / "compute-sanitizer"
    stand_in.write_text(SANITIZER)
    stand_in.chmod(0o755)
    done = rig.run_fresh(
        f"""
        from benchmarks.passes import room
        from gpumem_alloc.cli import main
        room.ask = lambda: room.Room(1 << 40, 1 << 40, None)  # no NVML there, and yet lockstep
        main(
            "bench --workloads buffers --allocators native,no-caching,memcheck --rounds 1 "
            "--passes peaks,times --budget 2 --out {tmp_path}/results.json".split()
        )
        """,
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "FOUND": str(errors)},
    )
    rows = store.load(tmp_path / "results.json").rows
    watched = [each for each in rows if each["allocator"] == "memcheck"]
    if errors:
        (made,) = watched  # it failed, and is not timed
        assert made["error"].endswith("========= ERROR SUMMARY: 2 errors")
        return
    assert [(each["kind"], each["group"], each.get("error")) for each in watched] == [
        ("peaks", None, None), ("times", None, None),
    ]  # fmt: skip
    assert "memcheck" in done.stdout
    assert [each["group"] for each in rows if each["kind"] == "times"] == [0, 0, None, None]
    assert watched[0]["driver"] is None
    found = summarise(store.load(tmp_path / "results.json"))[0].entry("buffers", "memcheck")
    assert found is not None
    assert found.times is not None
    assert found.times.to_native is not None
    assert found.times.to_native.steps == 3 * WORKLOADS["buffers"].steps // 4


@pytest.mark.torch
def test_a_script_gets_our_allocator(machine: Machine, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent(
            """
            import torch
            weight = torch.nn.Parameter(torch.empty(1 << 20, device="cuda"))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            for _ in range(4):
                weight.grad = torch.empty_like(weight)
                optimizer.step()
            """
        )
    )
    done = machine.run_fresh(
        f"""
        import json, sys
        from benchmarks.passes import script
        print("ROW", json.dumps(script.run([sys.executable, {str(program)!r}], "paged")))
        """
    )
    made = json.loads(done.stdout.partition("ROW ")[2])
    assert "error" not in made, made
    assert made["door"] == machine.door
    assert len(made["step_ms"]) == 4
    assert made["live_peak_bytes"] == 12 << 20  # the weight and two gradients


def test_nothing_of_a_results_file_is_lost_by_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    add(path, row(card={"timeline": [[0.5, 7]]}, step_ms=[1.25]))
    assert store.dumps(store.load(path)) == path.read_text()
    assert store.load(path) == Results(**{
        name: json.loads(path.read_text())[name] for name in ("sessions", "rows")
    })  # fmt: skip
