"""Carries out a plan: what fits in the time, one part after the other, each row saved at once."""

from __future__ import annotations

import itertools
import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

from ..store import Row, Store, key, next_group
from ..workers.ballast import Ballast, BallastError
from ..workers.job import Job
from ..workers.process import start
from . import capacity, in_turn, no_margin, plan
from .ahead import Ahead
from .capacity_study import Study
from .lockstep import Group, groups, need_bytes, take_turns
from .plan import Costs, Request, Task, is_tool
from .progress import Show
from .room import Room

RUN_SECONDS = 300.0  # a single run that takes longer is ended and noted
TOOL_RUN_SECONDS = 1800.0  # the same under a tool: 65 times the longest main workload is 600 s
IMPORT_SECONDS = 180.0
CORES_FOR_IMPORTS = 4  # of one process that starts ahead of its turn
CORES_FOR_TRIES = 8  # of one that starts ahead for each allocator that may be next
SETTLE_LOOKS = 20
SETTLE_SECONDS = 0.05
LEAST_SECONDS = 20.0  # a run gets that much, even if the time is over meanwhile
TOO_LATE = "the time was over"


class Runner:
    """One session: the plan, the clock, the processes, and the file that rows go to."""

    def __init__(
        self,
        request: Request,
        store: Store,
        room: Callable[[], Room],
        show: Show,
        known: Sequence[Row] = (),
    ) -> None:
        """`room` is asked now, and right before processes share the card.

        Good rows of peaks that are `known` from other files help to plan; none gets into this one.
        """
        self.request = request
        self.store = store
        self.room = room
        self.empty = room()  # nothing of ours is on the card yet
        self.show = show
        self.cores = len(os.sched_getaffinity(0))
        self.costs = Costs(request, self.cores)
        self.known = [row for row in known if row["kind"] == "peaks" and not row.get("error")]
        self.costs.learn([*self.known, *store.results.rows])
        self.begin = time.monotonic()
        self.left_out: list[Task] = []
        # Without NVML a poller asks the driver, and holds memory of the card while it waits.
        cores = self.cores if self.empty.free_bytes is not None else 1
        self.ahead = Ahead(cores, start)
        count = max(1, self.cores // CORES_FOR_TRIES) if self.ahead.is_on else 0
        self.workers = capacity.Workers(count, self.ahead.start)
        self._soon: list[Task] = []

    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self.request.budget_s - (time.monotonic() - self.begin)

    def open_tasks(self) -> list[Task]:
        """Return the tasks whose rows the file does not have yet."""
        return [task for task in plan.make(self.request) if not self.is_done(task)]

    def run(self) -> None:
        """Carry out the plan; however it ends, no process is left behind."""
        tasks = self.open_tasks()
        planned, left_out = plan.fitting(tasks, self.costs, self.left_s())
        self.show.say(plan.describe(planned, left_out, self.costs))
        if (said := in_turn.before(planned, self._tried, self.empty)) is not None:
            self.show.say(said)
        done = 0
        try:
            for index, task in enumerate(tasks):
                self._soon = tasks[index + 1 :]
                if self.costs.least_s(task) > self.left_s():
                    self.left_out.append(task)
                    continue
                rest, _ = plan.fitting([task, *self._soon], self.costs, self.left_s())
                left_s = sum(map(self.costs.seconds, rest))
                self.show.part(str(task), done, done + len(rest), left_s)
                self.do(task)
                done += 1
        finally:
            self.ahead.end_all()
        if self.left_out:
            lines = plan.by_kind(dict.fromkeys(self.left_out), self.costs)
            path = shlex.quote(str(self.store.path))
            self.show.say("\n".join([f"left out, {TOO_LATE}:", *lines]))
            self.show.say(f"go on with --resume --out {path}")

    def do(self, task: Task) -> None:
        """Carry out one task and keep its rows."""
        began = time.monotonic()
        carry_out = {
            "peaks": self.peaks,
            "times": self.times,
            "losses": self.losses,
            "capacity": self.find_capacity,
            "no_margin": self.try_no_margin,
        }
        try:
            carry_out[task.kind](task)
        except BallastError as error:
            self.show.say(f"{task}: left out, {error}")
        self.costs.learn(self.store.mine()[-1:])
        self.costs.note(task, time.monotonic() - began)

    def keep(self, task: Task, rows: Sequence[Row], **more: object) -> None:
        """Save rows and show them; a run that was ended since the time was over is left out."""
        begun = {"kind": task.kind, "round": task.round, "group": None, **more}
        if any(row.get("error", "").startswith("no end after") for row in rows) and (
            self.left_s() <= 0
        ):
            self.left_out.append(task)
            return
        made = [{**begun, **row} for row in rows]
        self.store.add(*made)
        self.show.rows(made)

    # The passes.

    def peaks(self, task: Task) -> None:
        """Run once with the card and the driver watched."""
        self.keep(task, [self.measure(self._peaks_job(task))])

    def times(self, task: Task) -> None:
        """Run in lockstep what fits on the card together, the rest in turn."""
        room = self.settled_room()
        for group in self._groups(task, room):
            if self._has_group(task, group):
                continue
            if group.in_lockstep:
                rows = self._lockstep([self._times_job(task, name) for name in group.members])
                self.keep(task, rows, group=next_group(self.store.results.rows))
            else:
                if len(group.members) > 1:
                    peaks = self._peaks(task.workload)
                    self.show.say(in_turn.during(task.workload, group, peaks, room))
                order = group.members[:: -1 if task.round % 2 else 1]
                for name in order:
                    job = replace(self._times_job(task, name), turns=False)
                    self.keep(task, [self.measure(job)])
                    if task in self.left_out:
                        break

    def losses(self, task: Task) -> None:
        """Run with deterministic kernels, native twice; at once where the card holds them."""
        peaks = self._peaks(task.workload)
        names = self._loss_names(task)
        jobs = [self._losses_job(task, name) for name in names]
        is_known = all(name in peaks for name in names)
        needs = [need_bytes(peaks[name]) for name in names] if is_known else []
        rows: list[Row] = []
        while jobs:
            count = 1
            most = min(len(jobs), max(1, self.cores // 2)) if needs else 1
            room = self.settled_room()
            while count < most and room.holds(needs[: count + 1]):
                count += 1
            made = self._at_once(jobs[:count])
            if count > 1:  # such kernels may need more than the pass for peaks has seen
                for at, row in enumerate(made):
                    made[at] = self.measure(jobs[at]) if row.get("out_of_memory") else row
            rows += made
            jobs, needs = jobs[count:], needs[count:]
        numbers = [names[:at].count(name) for at, name in enumerate(names)]
        self.keep(task, [row | {"round": at} for row, at in zip(rows, numbers, strict=True)])

    def find_capacity(self, task: Task) -> None:
        """Find the largest size that runs within a limit, for one allocator after the other."""
        study = self._study(task)
        with self._ballast(task) as room:
            for row in capacity.measure(
                study, room, self.workers, capacity.TRY_SECONDS, self.left_s,
                partial(self._told, task), self._next_searches(),
            ):  # fmt: skip
                self.show.rows([{"kind": task.kind, **row}])

    def _next_searches(self) -> list[Job]:
        """Return a job of the next search; a worker learns its size later."""
        soon = [task for task in self._soon if self.costs.least_s(task) <= self.left_s()]
        if not soon or soon[0].kind != "capacity":
            return []
        study = self._study(soon[0])
        return [study.job(*now) for now in [study.next()] if now is not None]

    def _told(self, task: Task, row: Row) -> None:
        """Save a search after every try: each is a process, and more may not come."""
        tried = row["tries"][-1]
        self.show.detail(f"{row['allocator']}: {tried['size']} {row['unit']}")
        made = {"kind": task.kind, "round": task.round, "group": None, **row}
        self.store.drop([each for each in self._rows(task) if key(each) == key(made)])
        self.store.add(made)

    def try_no_margin(self, task: Task) -> None:
        """See whether a run gets by with little more than what is live."""
        if (needed := self._needed(task)) is None:
            needs = "native's row of peaks, with a card's peak no lower than what was reserved"
            self.show.say(f"{task}: left out, it needs {needs}; --known may name its file")
            return
        with Ballast() as room:
            row = no_margin.measure(self._no_margin_job(task), needed, room, self.measure)
        self.keep(task, [row])

    def _needed(self, task: Task) -> no_margin.Need | None:
        return no_margin.need(task.workload, [*self.known, *self.store.results.rows])

    def _ballast(self, task: Task) -> AbstractContextManager[Ballast | None]:
        return nullcontext() if task.limit_gb is None else Ballast()

    def _study(self, task: Task) -> Study:
        """Return the search with what earlier sessions tried, without those that failed then."""
        rows = self._rows(task)
        failed = {
            row["allocator"]
            for row in rows
            if row.get("error") and row["limit_gb"] == task.limit_gb
        }
        names = [name for name in task.allocators if name not in failed]
        card_bytes = self.empty.total_bytes
        return capacity.study(task.workload, names, task.limit_gb, card_bytes, rows)

    # Processes.

    def measure(self, job: Job) -> Row:
        """Run one job alone, while the next one's imports go on."""
        return self._at_once([job])[0]

    def settled_room(self) -> Room:
        """Ask for the room until it does not change: ended processes give memory back late."""
        room = self.room()
        for _ in range(SETTLE_LOOKS):
            time.sleep(SETTLE_SECONDS)
            before, room = room, self.room()
            if room.free_bytes == before.free_bytes:
                break
        return room

    def limit_s(self, allocator: str) -> float:
        """Return the seconds that a run may take."""
        most_s = TOOL_RUN_SECONDS if is_tool(allocator) else RUN_SECONDS
        return min(most_s, max(LEAST_SECONDS, self.left_s() + LEAST_SECONDS))

    def _lockstep(self, jobs: list[Job]) -> list[Row]:
        with self.ahead.taken(jobs) as processes:
            self.ahead.prepare(self._next_jobs())
            seconds = max(self.limit_s(job.allocator) for job in jobs) + IMPORT_SECONDS
            return take_turns(processes, seconds, lambda step: self.show.detail(f"step {step}"))

    def _at_once(self, jobs: list[Job]) -> list[Row]:
        with self.ahead.taken(jobs) as processes:
            for process in processes:
                if process.wait_ready(IMPORT_SECONDS):
                    process.go()
            self.ahead.prepare(self._next_jobs())
            return [
                process.finish(self.limit_s(job.allocator))
                for process, job in zip(processes, jobs, strict=True)
            ]

    # What there is already, and what comes next.

    def is_done(self, task: Task) -> bool:
        """Say whether the file has the rows of a task."""
        rows = self._rows(task)
        if task.kind == "times":
            return all(self._has_group(task, group) for group in self._groups(task))
        if task.kind == "losses":
            wanted = sorted(self._loss_names(task))
            sessions = {row["session"] for row in rows}
            return not wanted or any(
                sorted(row["allocator"] for row in rows if row["session"] == session) == wanted
                for session in sessions
            )
        if task.kind == "capacity":
            return self._study(task).next() is None
        return any(row["allocator"] == task.allocators[0] for row in rows)

    def _rows(self, task: Task) -> list[Row]:
        wanted = (task.kind, task.workload)
        rows = self.store.results.rows
        found = [row for row in rows if (row["kind"], row.get("workload")) == wanted]
        if task.kind not in ("peaks", "times"):
            return found
        steps = self.request.steps(task.workload)  # a smoke run does not stand for a whole one
        return [row for row in found if row.get("steps") == steps]

    def _has_group(self, task: Task, group: Group) -> bool:
        """Say whether these were timed together in this round."""
        together: dict[object, set[str]] = {}
        for row in self._rows(task):
            if row["round"] == task.round and (row["group"] is not None) == group.in_lockstep:
                mark = row["group"] if group.in_lockstep else row["session"]
                together.setdefault(mark, set()).add(row["allocator"])
        return any(set(group.members) <= names for names in together.values())

    def _tried(self, workload: str) -> dict[str, Row]:
        """Return the rows of the pass for peaks by allocator, known ones where the file has none.

        Only of runs of as many steps: a smoke run holds less.
        """
        steps = self.request.steps(workload)
        wanted = ("peaks", workload, steps)
        return {
            row["allocator"]: row
            for row in [*self.known, *self.store.results.rows]
            if (row["kind"], row.get("workload"), row.get("steps")) == wanted
        }

    def _peaks(self, workload: str) -> dict[str, Row]:
        """Return those of them that did not fail."""
        return {name: row for name, row in self._tried(workload).items() if not row.get("error")}

    def _groups(self, task: Task, room: Room | None = None) -> list[Group]:
        """Return who is timed with whom; where a need is not known, everyone in turn.

        One that was asked for alone is timed too: `compare` holds it against another file.
        """
        peaks, tried = self._peaks(task.workload), self._tried(task.workload)
        is_alone = len(task.allocators) == 1 and task.allocators[0] in peaks
        if is_alone or not tried.keys() >= set(task.allocators):
            return [Group(task.allocators, in_lockstep=False)]
        return groups(task.allocators, peaks, room or self.empty)

    def _loss_names(self, task: Task) -> list[str]:
        """Return those whose losses are compared; nobody if ours or native fails."""
        tried = self._tried(task.workload)
        if any(row.get("losses") and not any(row["losses"]) for row in tried.values()):
            return []  # the workload computes none
        names = [name for name in task.allocators if not tried.get(name, {}).get("error")]
        return names if len(names) > 2 and "native" in names else []

    def _peaks_job(self, task: Task) -> Job:
        steps = self.request.steps(task.workload)
        (name,) = task.allocators  # CUPTI cannot be used beside a tool
        return Job(task.workload, name, steps=steps, driver_calls=not is_tool(name))

    def _times_job(self, task: Task, allocator: str) -> Job:
        steps = self.request.steps(task.workload)
        return Job(task.workload, allocator, steps=steps, turns=True, card=False)

    def _losses_job(self, task: Task, allocator: str) -> Job:
        steps = self.request.loss_steps(task.workload)
        return Job(task.workload, allocator, steps=steps, deterministic=True, card=False)

    def _no_margin_job(self, task: Task) -> Job:
        return no_margin.job(task.workload, task.allocators[0], self.request.steps(task.workload))

    def _next_jobs(self) -> list[Job]:
        """Return the jobs of the next tasks that fit, as far as they are known."""
        fits = [task for task in self._soon if self.costs.least_s(task) <= self.left_s()]
        if not fits:
            return []
        task = fits[0]
        one_run = {"peaks": self._peaks_job, "no_margin": self._no_margin_job}
        if task.kind in one_run:  # such a run may be shorter than the next one's imports
            few = fits[: max(1, self.cores // CORES_FOR_IMPORTS)]
            return [
                one_run[each.kind](each)
                for each in itertools.takewhile(lambda each: each.kind == task.kind, few)
            ]
        if task.kind == "times":
            first = next(iter(self._groups(task)), Group(()))
            jobs = [self._times_job(task, name) for name in first.members]
            return jobs if first.in_lockstep else []
        if task.kind == "losses":
            names = self._loss_names(task)[: self.cores // 2]
            return [self._losses_job(task, name) for name in names]
        return []
