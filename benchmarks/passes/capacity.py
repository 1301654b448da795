"""The largest size of a workload that runs while only so much of the card is free.

    wanted = study("gpt2_varlen", ("paged", "expandable", "native"), limit_gb=24)
    with Ballast() as ballast, Workers(ahead=True) as workers:
        for row in measure(wanted, ballast, workers):
            ...

A limit of 24 means that 24 GiB are really free on the card before the process starts: its context
comes out of them. The ballast holds the rest. Each try is a fresh process. A size fits if the run
ends without an error, and does not if memory was lacking; any other error ends that allocator's
search. A run that has not ended after TRY_SECONDS, where a smaller size fits, does not fit either.
What to try is said by capacity_study.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol

from ..workers.ballast import Left
from ..workers.job import Job, Row
from ..workers.process import Process, start
from ..workloads import WORKLOADS
from .bisection import Try
from .capacity_study import Study

LIMITS_GB = (24, 40, 80)
TRY_SECONDS = 90.0  # a run takes some 3 to 15 s: near the edge one may retry without end
LONGEST_ERROR = 120  # characters kept of a try's error: a search has several, and all say the same
# What libraries say when there is no memory for what they take from the driver themselves.
STARVED = (
    "unable to find an engine",  # cuDNN
    "cudnn_status_not_initialized",
    "cudnn_status_internal_error",
    "cublas_status_not_initialized",
    "cusolver_status_not_initialized",
    "mha_graph.execute(",  # cuDNN's attention, of which PyTorch says no more
)


class Room(Protocol):
    """Leaves so many bytes free on the card: a Ballast."""

    def leave(self, free_bytes: int) -> Left:
        """Take or give back memory until that much is free."""


def lacked_memory(row: Row) -> bool:
    """Say whether a run failed for want of memory."""
    text = str(row.get("error", "")).lower()
    return bool(row.get("out_of_memory")) or any(sign in text for sign in STARVED)


def study(
    workload: str,
    allocators: Sequence[str],
    limit_gb: int | None,
    card_bytes: int | None = None,
    rows: Iterable[Row] = (),
) -> Study:
    """Return what measure() takes; of earlier rows it uses what it can.

    Raises ValueError for a workload that has no size.
    """
    sized = WORKLOADS[workload].sized
    if sized is None:
        able = ", ".join(name for name, each in WORKLOADS.items() if each.sized is not None)
        raise ValueError(f"{workload} has no size to search for; these have: {able}")
    made = Study(workload, sized, allocators, limit_gb, card_bytes)
    made.learn(rows)
    return made


class Workers:
    """Runs jobs, and may start those of the next ones ahead, so that their imports cost no time.

    A worker that waits has imported its libraries and started nothing of CUDA: it holds no memory
    of the card. It learns its size when it is let go, so any that waits will do for its allocator.
    Those that turn out not to be needed are ended.
    """

    def __init__(self, ahead: int = 0, begin: Callable[[Job], Process] = start) -> None:
        self._ahead = ahead  # so many wait for each allocator that may be next
        self._begin = begin
        self._waiting: dict[Job, list[Process]] = {}  # by job without a size; the oldest first

    def run(self, job: Job, seconds: float, following: Iterable[Job] = ()) -> Row:
        """Run one job, while workers for those that may follow it start."""
        process = self._taken(job)
        try:
            self._prepare(list(following))
            deadline = time.monotonic() + seconds
            if process.wait_ready(seconds):
                process.go()
            return process.finish(max(0.0, deadline - time.monotonic()))
        finally:
            process.kill()

    def _taken(self, job: Job) -> Process:
        if not (waiting := self._waiting.get(_sizeless(job))):
            return self._begin(job)
        process = waiting.pop(0)
        assert job.size is not None
        process.resize(job.size)
        return process

    def _prepare(self, following: list[Job]) -> None:
        self._end(keep={_sizeless(job) for job in following})
        for job in following:
            waiting = self._waiting.setdefault(_sizeless(job), [])
            while len(waiting) < self._ahead:
                waiting.append(self._begin(job))

    def _end(self, keep: set[Job]) -> None:
        for job in self._waiting.keys() - keep:
            for process in self._waiting.pop(job):
                process.kill()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(keep=set())


def _sizeless(job: Job) -> Job:
    return replace(job, size=None)


def measure(
    study: Study,
    room: Room | None,
    workers: Workers,
    seconds: float = TRY_SECONDS,
    seconds_left: Callable[[], float] = lambda: math.inf,
    told: Callable[[Row], None] = lambda row: None,
    then: Sequence[Job] = (),
) -> Iterator[Row]:
    """Yield one row for each allocator of the study, when its search is over.

    then          what comes after the study, for which workers start when its end may be near
    told          gets the row so far after every try
    seconds_left  when no other try fits in, the row so far is yielded, with `complete` false
    Raises BallastError where the card has less than the limit.
    """
    longest_s = 0.0
    while (now := study.next()) is not None and longest_s < seconds_left():
        allocator, size = now
        left_bytes = None
        if room is not None and study.limit_bytes is not None:
            left_bytes = room.leave(study.limit_bytes).free_bytes
        following = study.after_next()
        if len(following) < 2 and study.tries.get(allocator):  # of two ways one is the end
            following += then
        begin = time.monotonic()
        allowed_s = min(seconds, seconds_left())
        row = workers.run(study.job(allocator, size), allowed_s, following)
        took_s = time.monotonic() - begin
        if "error" in row and allowed_s <= took_s < seconds:
            break  # it was ended for the sake of seconds_left: no fault of its own
        longest_s = max(longest_s, took_s)
        study.add(allocator, _as_try(size, row, took_s, left_bytes))
        is_endless = took_s >= seconds and study.row(allocator)["size"] is not None
        if "error" in row and not lacked_memory(row) and not is_endless:
            study.errors[allocator] = row["error"]
        told(study.row(allocator))
        if study.is_over(allocator):
            yield study.row(allocator)
    for allocator in study.allocators:
        if study.tries.get(allocator) and not study.is_over(allocator):
            yield study.row(allocator)


def _as_try(size: int, row: Row, took_s: float, left_bytes: int | None) -> Try:
    error = row.get("error")
    return Try(
        size=size,
        fits=error is None,
        seconds=round(took_s, 2),
        error=error if error is None else error[:LONGEST_ERROR],
        live_peak_bytes=row.get("live_peak_bytes"),
        left_bytes=left_bytes,
    )


@dataclass(frozen=True)
class Gain:
    """How much larger one capacity is than another: 0.25 is a quarter more.

    Both are known to lie between a size that fit and one that failed: so is their quotient.
    """

    found: float  # of the two sizes that fit
    least: float | None  # None where no size of the other failed
    most: float | None


def gain(mine: Row, other: Row) -> Gain | None:
    """Compare two capacity rows of one workload and limit; None where either fits no size."""
    if not mine.get("size") or not other.get("size"):
        return None

    def more(larger: int | None, smaller: int | None) -> float | None:
        return None if larger is None or smaller is None else larger / smaller - 1

    def last(row: Row) -> int | None:
        return None if row.get("fails_at") is None else row["fails_at"] - 1

    return Gain(
        found=mine["size"] / other["size"] - 1,
        least=more(mine["size"], last(other)),
        most=more(last(mine), other["size"]),
    )
