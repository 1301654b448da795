"""Runs jobs in a nursery and collects the answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpumem_alloc

_PACKAGE_FOLDER = Path(gpumem_alloc.__file__).resolve().parent.parent
_NOT_NATIVE = (
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
)  # fmt: skip
NURSERY_SECONDS = 240

Job = dict[str, Any]
Answer = dict[str, Any]


def environment() -> dict[str, str]:
    """Return the environment of children: this package, and PyTorch's allocator as it comes.

    They leave no ledgers behind: what they find is wanted.
    """
    clean = {name: value for name, value in os.environ.items() if name not in _NOT_NATIVE}
    paths = [str(_PACKAGE_FOLDER), *filter(None, [clean.get("PYTHONPATH")])]
    ours = {"PYTHONPATH": os.pathsep.join(paths), "GPUMEM_ALLOC_LEDGER": "off"}
    return {**clean, **ours}


def run_jobs(jobs: Sequence[Job], at_once: int, modules: Sequence[str]) -> dict[Any, Answer]:
    """Return the answer of each job, by its id; the children import `modules` once for all."""
    if not jobs:
        return {}
    command = [sys.executable, "-m", "gpumem_alloc.verify.nursery", str(at_once), *modules]
    nursery = subprocess.Popen(
        command, env=environment(), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    watchdog = threading.Timer(NURSERY_SECONDS, nursery.kill)
    watchdog.start()
    try:
        return _converse(nursery, jobs)
    finally:
        watchdog.cancel()
        _end(nursery)


def _converse(nursery: subprocess.Popen[str], jobs: Sequence[Job]) -> dict[Any, Answer]:
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    try:
        nursery.stdin.write("".join(json.dumps(job) + "\n" for job in jobs))
        nursery.stdin.flush()
    except BrokenPipeError:
        pass  # it ended; so does its stdout
    answers: dict[Any, Answer] = {}
    while len(answers) < len(jobs) and (line := nursery.stdout.readline()):
        answer = json.loads(line)
        answers[answer.pop("id")] = answer
    ended = {"stopped": None, "text": "", "error": "the process that starts the attacks ended"}
    return {job["id"]: answers.get(job["id"], ended) for job in jobs}


def _end(nursery: subprocess.Popen[str]) -> None:
    """Close its stdin, upon which it kills what still runs, and wait."""
    try:
        nursery.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        nursery.kill()
        nursery.communicate()
