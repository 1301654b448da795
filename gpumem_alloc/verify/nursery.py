"""Child processes for attacks: each is forked from one process that has imported what all need.

    python -m gpumem_alloc.verify.nursery CHILDREN_AT_ONCE [MODULE ...]

Jobs come on stdin, a line of JSON each: {"id", "module", "name", "side", "options",
"alone", "seconds"}. The module's run(name, side, options)
is called. Answers go to stdout: {"id", "stopped", "text", "error"}. An attack may end its process
or hang; then that is the answer. When stdin ends, jobs that still run are killed with all that they
started. Without "error" a "stopped" of null means that the attack cannot be made here; "text" says
why.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from gpumem_alloc.verify.outcome import NotRunError

Job = dict[str, Any]
_PR_SET_PDEATHSIG = 1


@dataclass
class Child:
    """A job that runs."""

    job: Job
    pid: int
    pipe: int
    end: float
    answer: bytearray = field(default_factory=bytearray)
    is_late: bool = False


class Nursery:
    """Runs jobs, several at a time, those that say so alone."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: deque[Job] = deque()
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._input = b""
        self._is_open = True

    def run(self) -> None:
        """Serve until stdin ends."""
        while self._is_open:
            self._start()
            for key, _ in self._selector.select(self._seconds_left()):
                if key.fd == 0:
                    self._take_jobs()
                else:
                    self._hear(key.data)
            self._kill_late()
        for child in self._children:
            _kill(child.pid)

    def _start(self) -> None:
        while self._waiting and len(self._children) < self._at_once:
            is_alone = self._waiting[0]["alone"] or any(c.job["alone"] for c in self._children)
            if is_alone and self._children:
                return
            child = _begin(self._waiting.popleft())
            self._children.append(child)
            self._selector.register(child.pipe, selectors.EVENT_READ, child)

    def _seconds_left(self) -> float | None:
        ends = [child.end for child in self._children if not child.is_late]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _take_jobs(self) -> None:
        data = os.read(0, 1 << 16)
        *lines, self._input = (self._input + data).split(b"\n")
        self._waiting.extend(json.loads(line) for line in lines)
        self._is_open = bool(data)

    def _hear(self, child: Child) -> None:
        data = os.read(child.pipe, 1 << 16)
        child.answer += data
        if not data or data.endswith(b"\n"):
            self._finish(child)

    def _kill_late(self) -> None:
        for child in self._children:
            if not child.is_late and time.monotonic() >= child.end:
                child.is_late = True
                _kill(child.pid)

    def _finish(self, child: Child) -> None:
        self._selector.unregister(child.pipe)
        os.close(child.pipe)
        self._children.remove(child)
        _kill(child.pid)  # what it started, too
        _, status = os.waitpid(child.pid, 0)
        answer = {"stopped": None, "text": "", "error": _end_of(child, status)}
        with contextlib.suppress(ValueError):
            answer = json.loads(child.answer)
        print(json.dumps({"id": child.job["id"], **answer}), flush=True)


def _end_of(child: Child, status: int) -> str:
    if child.is_late:
        return f"it did not end within {child.job['seconds']} s"
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _begin(job: Job) -> Child:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            _become_own(job)
            os.write(writer, json.dumps(_answer(job)).encode() + b"\n")
        finally:
            os._exit(0)  # a lost context cannot be tidied up
    os.close(writer)
    with contextlib.suppress(OSError):  # the child does it too: whoever is first
        os.setpgid(pid, pid)
    return Child(job, pid, reader, time.monotonic() + job["seconds"])


def _become_own(job: Job) -> None:
    """Lead a group of processes that ends with the nursery, without its stdin and stdout."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)


def _answer(job: Job) -> dict[str, Any]:
    try:
        module: Any = importlib.import_module(job["module"])
        outcome = module.run(job["name"], job["side"], job["options"])
    except NotRunError as error:
        return {"stopped": None, "text": f"not run: {error}", "error": ""}
    except Exception as error:  # whatever it is, it is the answer
        text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        return {"stopped": None, "text": "", "error": text}
    return {"stopped": outcome.stopped, "text": outcome.text, "error": ""}


def main() -> None:
    """See the module's text."""
    at_once = int(sys.argv[1])
    for name in sys.argv[2:]:
        importlib.import_module(name)
    Nursery(at_once).run()


if __name__ == "__main__":
    main()
