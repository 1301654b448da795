"""One process that measures: started, let go, taken turns with, and ended, whatever it does.

    row = run(Job("gnn", "paged"), seconds=240)

    process = start(job)               # does not block; the process imports torch meanwhile
    process.wait_ready(60)             # imports are done, nothing of CUDA has started
    process.go()                       # CUDA starts
    while process.turn() is not None:  # only a job with `turns`: go() and step(), once per step
        ...
    row = process.finish(240)

Lines of the protocol, on the worker's stdout and stdin; everything else there is ignored:

    worker READY           then waits for GO, before which SIZE <n> may change the job's size
    worker STARTED         CUDA serves; with turns it waits for GO before step 0 and every other one
    worker STEP <i> <ms>   only with turns; CORE <n> may come before any GO
    worker ROW {json}      last; a failure that the worker could tell has `error` in it
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

from ..allocators import choose, find
from .children import command, import_path
from .job import Job, Row

LONGEST_LINE = 1 << 24  # characters; more without an end of line is no row
LONGEST_ERROR = 600
ERROR_LINES = 4
LAST_LINES = 40
# What runs on with less than was asked for: passed on to our own stderr, each line once.
REMARKS = ("driver calls: ", "card memory: ")
# A line of a tool, on stdout between ours; its details are indented further. They are among the
# last words, since an exit code is all else that tells of what it found.
TOOL_LINE = re.compile(r"========= \S")
END_SECONDS = 20  # from the row until the process has ended
READER_SECONDS = 5  # a pipe may be held open by a process that got away


class Process:
    """A worker process. No method raises for what the worker does."""

    def __init__(self, job: Job, words: list[str], environment: dict[str, str]) -> None:
        self.job = job
        self._child = subprocess.Popen(
            words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
            start_new_session=True,  # so that what it started can be ended with it
        )  # fmt: skip
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._last_words: deque[str] = deque(maxlen=LAST_LINES)
        self._row_text: str | None = None
        self._is_over = False  # nothing more will come
        self._is_killed = False
        self._readers = [
            threading.Thread(target=self._read_stdout, daemon=True),
            threading.Thread(target=self._read_stderr, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Return the number of the worker's process, and of its main thread."""
        return self._child.pid

    def wait_ready(self, seconds: float) -> bool:
        """Wait until the worker has its imports; False if it does not get there."""
        return self._wait("READY", seconds) is not None

    def wait_started(self, seconds: float) -> bool:
        """Wait, after go(), until CUDA serves in the worker; False if it does not get there."""
        return self._wait("STARTED", seconds) is not None

    def resize(self, size: int) -> None:
        """Give the job another size; before the first go()."""
        self.job = replace(self.job, size=size)
        self._say(f"SIZE {size}")

    def stay_on(self, core: int) -> None:
        """Keep the worker's main thread on one core from here on."""
        self._say(f"CORE {core}")

    def go(self) -> None:
        """Let the worker start CUDA, or begin its next step."""
        self._say("GO")

    def _say(self, line: str) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, which finish() will tell
            self._child.stdin.write(f"{line}\n")
            self._child.stdin.flush()

    def step(self, seconds: float = 120.0) -> tuple[int, float] | None:
        """Return the next step's index and milliseconds; None if no other one comes."""
        line = self._wait("STEP", seconds)
        try:
            _, index, ms = (line or "").split()
            return int(index), float(ms)
        except ValueError:
            return None

    def turn(self, seconds: float = 120.0) -> tuple[int, float] | None:
        """Let the worker run its next step, and return what step() does."""
        self.go()
        return self.step(seconds)

    def finish(self, seconds: float) -> Row:
        """Wait for the row and the process's end; after `seconds` end it and say so in the row."""
        if self.job.turns:
            self.go()  # after its last step the worker waits for its turn to end
        self._wait("ROW", seconds)
        problem = ""
        if not self._is_over:
            problem = f"no end after {seconds:.0f} s"
        else:
            try:
                self._child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                problem = f"alive {END_SECONDS} s after its last word"
        self.kill()
        for reader in self._readers:
            reader.join(READER_SECONDS)
        return self.job.row() | {"card": None, "driver": None} | self._outcome(problem)

    def kill(self) -> None:
        """End the worker and what it started; fine if it has ended already."""
        if self._is_killed:
            return
        self._is_killed = True  # its number may soon be another's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.close()

    def _outcome(self, problem: str) -> Row:
        try:
            found = json.loads(self._row_text or "null")
        except ValueError:
            found = None
        if isinstance(found, dict) and "error" in found:
            return found
        code = self._child.returncode
        if isinstance(found, dict) and code == 0 and not problem:
            return found
        if not problem and code == 0:
            problem = "ended without a row"
        if not problem:
            problem = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        words = [line.strip() for line in list(self._last_words) if line.strip()]
        text = ": ".join(filter(None, [problem, " | ".join(words[-ERROR_LINES:])]))
        return {
            "error": text[:LONGEST_ERROR],
            "out_of_memory": is_out_of_memory(" ".join(words)),
        }

    def _wait(self, word: str, seconds: float) -> str | None:
        deadline = time.monotonic() + seconds
        while not self._is_over:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if line is None:
                self._is_over = True
            elif line.startswith("ROW "):
                self._row_text = line[4:]
                self._is_over = True
            elif line.split(None, 1)[0] == word:
                return line
        return None

    def _read_stdout(self) -> None:
        assert self._child.stdout is not None
        for line in _lines(self._child.stdout, LONGEST_LINE):
            if line.startswith(("READY", "STARTED", "STEP ", "ROW ")):
                self._lines.put(line)
            elif TOOL_LINE.match(line):
                self._last_words.append(line)
        self._lines.put(None)

    def _read_stderr(self) -> None:
        assert self._child.stderr is not None
        for line in _lines(self._child.stderr, LONGEST_ERROR):
            self._last_words.append(line)
            if line.startswith(REMARKS) and line not in _told:
                _told.add(line)
                print(line, file=sys.stderr)


_told: set[str] = set()


def _lines(stream: IO[str], longest: int) -> Iterator[str]:
    """Read until the other side closes the stream, so that it never waits for a full pipe."""
    with stream:
        while line := stream.readline(longest):
            yield line.rstrip("\n")


def is_out_of_memory(text: str) -> bool:
    """Say whether an error's text is that of a card without memory."""
    text = text.lower()
    return any(sign in text for sign in ("out of memory", "out_of_memory", "alloc_failed"))


def child_environment(allocator: str) -> dict[str, str]:
    """Return the environment for a process under an allocator, which imports what this one can."""
    environment = dict(os.environ)
    choose(allocator, environment)
    environment["PYTHONPATH"] = import_path()
    return environment


def start(job: Job) -> Process:
    """Start a worker and return at once. Raises ValueError for an allocator that does not exist."""
    words = [*find(job.allocator).wrapper, *command("workers.worker", "--job", job.to_json())]
    return Process(job, words, child_environment(job.allocator))


def run(job: Job, seconds: float) -> Row:
    """Start, let go and finish; a job with turns takes them one after the other."""
    process = start(job)
    deadline = time.monotonic() + seconds
    try:
        if process.wait_ready(seconds):
            process.go()
            while job.turns and process.turn(max(0.0, deadline - time.monotonic())) is not None:
                pass
        return process.finish(max(0.0, deadline - time.monotonic()))
    finally:
        process.kill()
