"""Attacks that do not end as they should; tests/test_verify_isolation.py runs them in a nursery."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

from gpumem_alloc.verify.outcome import NotRunError, Outcome, stopped


def run(name: str, side: str, options: Mapping[str, object]) -> Outcome:
    """Do what the name says."""
    if name == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hang":  # with a process of its own, whose id is left where the test looks
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(str(options["file"]), "w") as file:  # noqa: PTH123
            file.write(str(child.pid))
        time.sleep(600)
    if name == "raise":
        raise ValueError("a mistake\nof two lines")
    if name == "cannot":
        raise NotRunError("there is no moon")
    return stopped(f"{side} is fine")
