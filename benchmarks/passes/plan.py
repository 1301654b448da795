"""What a run will measure, in which order, and about how long each part takes.

The order is that of what is missed most if time runs out: every peak once, then times and losses of
the main workloads, then those of the others, then capacity and no-margin, then more rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..allocators import ALLOCATORS
from ..store import Row
from ..workloads import MAIN_WORKLOADS, WORKLOADS

PASSES = ("peaks", "times", "losses", "capacity", "no-margin")
MAIN_ALLOCATORS = ("native", "expandable", "cudaMallocAsync", "paged")
SMOKE_WORKLOADS = ("prefetch_train", "streams")
SMOKE_ALLOCATORS = ("native", "paged")
SMOKE_PASSES = ("peaks", "times", "losses")
SMOKE_BUDGET_S = 55.0
LOSS_STEPS = 10
CAPACITY_TRIES = 5  # for each allocator; they begin where the one before has ended
# Seconds of the first step (CUDA starts, the model is made) and of each other one, by family,
# until a run of the workload has told.
GUESSES = {"model": (6.0, 0.25), "document": (6.0, 0.25), "pattern": (2.5, 0.1), "rmm": (3.0, 0.1)}
IMPORTS_S = 7.0
TRY_S = 2.0  # the steps of a run of a capacity search, and the end of its process
WORTH_A_BEGINNING = 0.3  # of a capacity search: so much of it, and the first allocator's is over
BALLAST_S = 3.0  # until it has filled the card
DETERMINISTIC = 2.0  # how much slower steps with such kernels are
# How much slower a tool such as memcheck makes each step (15 to 65 times on an H200) and the first
# one, most of which is the host's, until a run under it has told.
TOOL_STEP, TOOL_FIRST = 30.0, 5.0


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    workloads: tuple[str, ...]
    allocators: tuple[str, ...]
    passes: tuple[str, ...] = PASSES
    rounds: int = 3  # of times; workloads that are not main ones have the others last
    limits_gb: tuple[int | None, ...] = (None,)  # of capacity; None: the card
    budget_s: float = math.inf
    is_smoke: bool = False

    def steps(self, workload: str) -> int | None:
        """Return the steps of a run; None for the workload's own number."""
        return WORKLOADS[workload].smoke_steps if self.is_smoke else None

    def loss_steps(self, workload: str) -> int:
        """Return the steps of a run that compares losses."""
        return min(LOSS_STEPS, self.steps(workload) or WORKLOADS[workload].steps)


@dataclass(frozen=True)
class Task:
    """A part of the plan that is done or left out as a whole."""

    kind: str  # as in its rows
    workload: str
    allocators: tuple[str, ...]
    round: int = 0
    limit_gb: int | None = None

    def __str__(self) -> str:
        """Return what progress calls it."""
        names = ", ".join(self.allocators)
        extra = f" within {self.limit_gb} GiB" if self.limit_gb else ""
        extra += f", round {self.round + 1}" if self.kind == "times" else ""
        return f"{self.kind.replace('_', '-')}: {self.workload}, {names}{extra}"


def family(allocator: str) -> str:
    """Return whose an allocator is; a spelling that the table lacks is ours."""
    known = ALLOCATORS.get(allocator)
    return "ours" if known is None else known.family


def natives_of(allocators: Iterable[str]) -> list[str]:
    """Return those that are PyTorch's own."""
    return [name for name in allocators if family(name) == "pytorch"]


def ours_of(allocators: Iterable[str]) -> list[str]:
    """Return those that are ours."""
    return [name for name in allocators if family(name) == "ours"]


def is_tool(allocator: str) -> bool:
    """Say whether it is a tool that watches a run. It takes part in peaks and times only."""
    return family(allocator) == "tool"


def make(request: Request) -> list[Task]:
    """Return all tasks, the most wanted first."""
    main = [name for name in request.workloads if name in MAIN_WORKLOADS]
    others = [name for name in request.workloads if name not in MAIN_WORKLOADS]
    later = range(1, request.rounds)
    tasks = _each("peaks", [*main, *others], request.allocators)
    tasks += _times(main, [0], request) + _losses(main, request) + _times(main, later, request)
    tasks += _times(others, [0], request) + _losses(others, request)
    sized = [name for name in [*main, *others] if WORKLOADS[name].sized]
    plain = [name for name in request.allocators if not is_tool(name)]
    order = (*ours_of(plain), *plain)  # its search goes first
    tasks += [
        Task("capacity", workload, tuple(dict.fromkeys(order)), limit_gb=limit_gb)
        for limit_gb in request.limits_gb
        for workload in sized
        if plain
    ]
    tasks += _each("no_margin", [*main, *others], plain)
    tasks += _times(others, later, request)
    return [task for task in tasks if task.kind.replace("_", "-") in request.passes]


def nothing(request: Request) -> str:
    """Say why a request has no task at all."""
    sized = ", ".join(name for name, each in WORKLOADS.items() if each.sized)
    return (
        f"--passes {','.join(request.passes)} measures nothing of this.\n"
        "losses compares native with one of ours, capacity needs a workload of a size to vary.\n"
        f"Such are {sized}; memcheck takes part in peaks and times only."
    )


def _each(kind: str, workloads: Iterable[str], allocators: Sequence[str]) -> list[Task]:
    return [Task(kind, workload, (name,)) for workload in workloads for name in allocators]


def _times(workloads: Iterable[str], rounds: Iterable[int], request: Request) -> list[Task]:
    return [
        Task("times", workload, request.allocators, index)
        for index in rounds
        for workload in workloads
    ]


def _losses(workloads: Iterable[str], request: Request) -> list[Task]:
    names = ("native", *ours_of(request.allocators), "native")
    return [Task("losses", workload, names) for workload in workloads] if len(names) > 2 else []


@dataclass
class Costs:
    """What runs took so far, and from that what others will take."""

    request: Request
    cores: int = 1
    imports_s: float = IMPORTS_S
    # By workload, and whether a tool watched.
    _first_s: dict[tuple[str, bool], float] = field(default_factory=dict)
    _step_s: dict[tuple[str, bool], float] = field(default_factory=dict)
    _taken: dict[str, list[float]] = field(default_factory=dict)  # by kind: expected, taken

    def learn(self, rows: Iterable[Row]) -> None:
        """Take over what rows say of their workloads."""
        for row in rows:
            times = row.get("step_ms") or []
            is_told = len(times) > 1 and row.get("startup_s") is not None
            if is_told and row["kind"] in ("peaks", "times"):
                of = row["workload"], is_tool(row["allocator"])
                self._first_s[of] = row["startup_s"] + times[0] / 1e3
                self._step_s[of] = sum(times[1:]) / 1e3 / (len(times) - 1)

    def note(self, task: Task, taken_s: float) -> None:
        """Remember how long a task took, for others of its kind; call it after learn()."""
        expected_s, all_s = self._taken.get(task.kind, [0.0, 0.0])
        self._taken[task.kind] = [expected_s + self._model_s(task), all_s + taken_s]

    def seconds(self, task: Task) -> float:
        """Return about how long a task takes."""
        expected_s, taken_s = self._taken.get(task.kind, [0.0, 0.0])
        ratio = taken_s / expected_s if expected_s else 1.0
        return min(max(ratio, 0.25), 4.0) * self._model_s(task)

    def least_s(self, task: Task) -> float:
        """Return with how many seconds a task is begun: a search keeps what it has found."""
        part = WORTH_A_BEGINNING if task.kind == "capacity" else 1.0
        return part * self.seconds(task)

    def _model_s(self, task: Task) -> float:
        first_s, step_s = self._parts_s(task.workload)
        one_s = self._run_s(task.workload)
        imports_s = 0.3 * self.imports_s if self.cores >= 8 else self.imports_s
        if task.kind == "times":
            return self._times_s(task, one_s)
        if task.kind == "losses":
            run_s = first_s + DETERMINISTIC * self.request.loss_steps(task.workload) * step_s
            at_once = max(1, min(len(task.allocators), self.cores // 2))
            return (self.imports_s + run_s) * len(task.allocators) / at_once
        if task.kind == "capacity":
            tries = CAPACITY_TRIES * len(task.allocators)
            return tries * (imports_s + first_s + TRY_S)
        if task.kind == "no_margin":
            return imports_s + one_s + BALLAST_S
        return imports_s + self._run_s(task.workload, is_tool(task.allocators[0]))

    def _times_s(self, task: Task, one_s: float) -> float:
        """Return what runs in lockstep take, and then a tool's and another of native."""
        runs = min(2, len(natives_of(task.allocators))) + len(ours_of(task.allocators))
        total_s = self.imports_s * math.ceil(runs / self.cores) + runs * one_s
        tools = sum(map(is_tool, task.allocators))
        if tools:
            total_s += (1 + tools) * self.imports_s + one_s
            total_s += tools * self._run_s(task.workload, watched=True)
        return total_s

    def _run_s(self, workload: str, watched: bool = False) -> float:
        first_s, step_s = self._parts_s(workload, watched)
        return first_s + (self.request.steps(workload) or WORKLOADS[workload].steps) * step_s

    def _parts_s(self, workload: str, watched: bool = False) -> tuple[float, float]:
        """Return the seconds of the first step and of each other one; `watched` by a tool.

        Guesses of workloads that have not run yet are corrected by those that have.
        """
        if (workload, watched) in self._step_s:
            return self._first_s[workload, watched], self._step_s[workload, watched]
        if watched:
            first_s, step_s = self._parts_s(workload)
            return TOOL_FIRST * first_s, TOOL_STEP * step_s
        known = [name for name, by_tool in self._step_s if not by_tool]
        guessed_s = sum(map(sum, map(_guess, known)))
        learned_s = sum(self._first_s[name, False] + self._step_s[name, False] for name in known)
        ratio = min(max(learned_s / guessed_s, 0.25), 4.0) if known else 1.0
        first_s, step_s = _guess(workload)
        return ratio * first_s, ratio * step_s


def _guess(workload: str) -> tuple[float, float]:
    return GUESSES.get(WORKLOADS[workload].family, GUESSES["model"])


def fitting(tasks: Iterable[Task], costs: Costs, seconds: float) -> tuple[list[Task], list[Task]]:
    """Divide tasks into those that are begun in the time, in order, and those that are not."""
    planned: list[Task] = []
    left_out: list[Task] = []
    for task in tasks:
        if costs.least_s(task) <= seconds:
            planned.append(task)
            seconds -= costs.seconds(task)
        else:
            left_out.append(task)
    return planned, left_out


def describe(tasks: Sequence[Task], left_out: Sequence[Task], costs: Costs) -> str:
    """Return the plan as text: what will run, about how long, and what is left out."""
    total_s = sum(costs.seconds(task) for task in tasks)
    lines = [f"plan: {len(tasks)} parts, about {minutes(total_s)}"]
    lines += by_kind(tasks, costs)
    if left_out:
        lines += ["left out, the time does not reach:", *by_kind(left_out, costs)]
    return "\n".join(lines)


def by_kind(tasks: Iterable[Task], costs: Costs) -> list[str]:
    """Return a line for each kind: how many tasks, of which workloads, and about how long."""
    tasks, lines = list(tasks), []
    for kind in dict.fromkeys(task.kind for task in tasks):
        of_kind = [task for task in tasks if task.kind == kind]
        workloads = ", ".join(dict.fromkeys(task.workload for task in of_kind))
        taken = minutes(sum(costs.seconds(task) for task in of_kind))
        lines.append(f"  {kind.replace('_', '-'):9} {len(of_kind):4} × {workloads}: about {taken}")
    return lines


def minutes(seconds: float) -> str:
    """Return a time for people."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
