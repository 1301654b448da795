"""Worker processes, some started before they are needed: their imports cost no time then.

Whatever happens, end_all() ends every process that was started here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..workers.job import Job
from ..workers.process import Process

CORES = 8  # with fewer, imports would disturb what is measured meanwhile


class Ahead:
    """Starts processes for jobs; those of `prepare` wait until they are taken."""

    def __init__(self, cores: int, start: Callable[[Job], Process]) -> None:
        self.is_on = cores >= CORES
        self._start = start
        self._waiting: dict[Job, list[Process]] = {}
        self._alive: list[Process] = []

    def prepare(self, jobs: Sequence[Job]) -> None:
        """Start these jobs' processes, which import and then wait; end others that wait."""
        wanted = list(jobs) if self.is_on else []
        for job in list(self._waiting):
            for process in self._waiting.pop(job) if job not in wanted else []:
                self._end(process)
        for job in wanted:
            waiting = self._waiting.setdefault(job, [])
            if len(waiting) < wanted.count(job):
                waiting.append(self.start(job))

    @contextmanager
    def taken(self, jobs: Sequence[Job]) -> Iterator[list[Process]]:
        """Give a process for each job; they have ended afterwards."""
        processes: list[Process] = []
        try:
            for job in jobs:
                waiting = self._waiting.get(job)
                processes.append(waiting.pop() if waiting else self.start(job))
            yield processes
        finally:
            for process in processes:
                self._end(process)

    def start(self, job: Job) -> Process:
        """Start a process now."""
        process = self._start(job)
        self._alive.append(process)
        return process

    def end_all(self) -> None:
        """End every process."""
        self._waiting.clear()
        for process in list(self._alive):
            self._end(process)

    def _end(self, process: Process) -> None:
        process.kill()
        if process in self._alive:
            self._alive.remove(process)
