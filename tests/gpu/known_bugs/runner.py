"""Runs the cases in processes of their own, some at a time, and compares with the table."""

from __future__ import annotations

import json
import os
import queue
import signal
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.known_bugs.child import FAULTS
from tests.gpu.known_bugs.table import Case, Level
from tests.rig.machine import Machine

ROOT = Path(__file__).resolve().parent.parent.parent.parent
AT_ONCE = max(1, min(8, (os.cpu_count() or 2) // 2))
FINDINGS = ("fault", "violation", "poison")


@dataclass(frozen=True)
class Observation:
    """What one process saw of one case under one level."""

    case: str
    level: Level
    wrong: bool
    outcome: str
    detail: str

    @property
    def found(self) -> bool:
        """Whether the mistake, or what was taken for one, showed."""
        return self.outcome in FINDINGS


def difference(case: Case, seen: Observation, kind: str = "gpu") -> str:
    """Say how an observation differs from the table; "" if it does not."""
    where = f"{case.name}, {'wrong' if seen.wrong else 'right'}, {seen.level}"
    what = f"{seen.outcome} ({seen.detail})" if seen.detail else seen.outcome
    if seen.outcome == "error":
        return f"{where}: {what}"
    if kind == "rig" and case.card_only:
        return ""
    if not seen.wrong:
        return "" if seen.outcome == "nothing" else f"{where}: {what}, and nothing is wrong with it"
    certainty = case.found[seen.level]
    if seen.level == "strict" and seen.outcome != case.signal:
        return f"{where}: {what}, not {case.signal}"
    if seen.found and certainty == "never":
        return f"{where}: {what}, which the table says is never found"
    if not seen.found and certainty == "always":
        return f"{where}: {what}, which the table says is always found"
    return ""


class Runner:
    """Machines that are given one process after the other. Close it, or use `with`."""

    def __init__(self, kind: str = "gpu", at_once: int = AT_ONCE) -> None:
        self._kind = kind
        self._machines = [Machine(kind, door="bridge") for _ in range(at_once)]
        self._free: queue.SimpleQueue[Machine] = queue.SimpleQueue()
        for machine in self._machines:
            self._free.put(machine)
        self._threads = ThreadPoolExecutor(at_once)
        self._folder = tempfile.TemporaryDirectory(prefix="gpumem_alloc-known-bugs-")
        self._path = f"Path({self._folder.name!r})"  # in Python
        # Once, and not in each process while its time runs.
        self._prepared = self._threads.submit(self._prepare)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what has not begun, wait for what has, end the machines."""
        self._threads.shutdown(cancel_futures=True)
        for machine in self._machines:
            machine.close()
        self._folder.cleanup()

    def submit(self, case: Case, level: Level, wrong: bool) -> Future[Observation]:
        """Begin one process when there is room for it."""
        return self._threads.submit(self._observe, case.name, level, wrong)

    def _prepare(self) -> None:
        self._python(f"child.compile_all({self._path})")

    def _observe(self, name: str, level: Level, wrong: bool) -> Observation:
        try:
            self._prepared.result()
            run = self._python(f"child.main({name!r}, {level!r}, {wrong!r}, {self._path})")
            lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
            if run.returncode == 0 and len(lines) == 1:
                return Observation(**json.loads(lines[0]))
            if self._kind == "rig" and run.returncode == -signal.SIGSEGV:
                return Observation(name, level, wrong, "fault", "SIGSEGV")
            if run.returncode == -signal.SIGABRT and any(text in run.stderr for text in FAULTS):
                # PyTorch lets the error out of a destructor, which ends the process.
                return Observation(name, level, wrong, "fault", "SIGABRT, and a CUDA error")
            detail = f"exit code {run.returncode}\n{run.stdout}{run.stderr}".strip()
        except Exception as error:  # a test's report, or the table, says what it was
            detail = f"{type(error).__name__}: {error}"
        return Observation(name, level, wrong, "error", detail)

    def _python(self, call: str) -> Any:
        machine = self._free.get()
        try:
            return machine.run(
                f"import sys; sys.path.append({str(ROOT)!r})\n"
                "from pathlib import Path\n"
                "from tests.gpu.known_bugs import child\n"
                f"{call}\n",
                check=not call.startswith("child.main("),
            )
        finally:
            self._free.put(machine)
