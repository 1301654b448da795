"""Runs behaviours in a process that has nothing else to do: `main()` is what a machine is given.

What happened goes to a file, a line of JSON before and after each behaviour, so that the one that
ends the process is known. A behaviour of the end itself is run last and returned from.
"""

from __future__ import annotations

import gc
import json
import os
import traceback
from pathlib import Path

from tests.behaviour.table import Behaviour, Check, behaviours
from tests.behaviour.tools import torch

ON_RIG = os.environ.get("GMA_TEST_MACHINE") == "rig"  # as machine.py sets it


def main(allocator: str, names: list[str], report: str) -> None:
    """Run behaviours one after the other with `native`, `bridge` or `bridge-late`."""
    use(allocator)
    gc.freeze()  # what torch's import left need not be looked at in each settle()
    with Path(report).open("a") as lines:
        for name in names:
            lines.write(json.dumps({"begun": name}) + "\n")
            lines.flush()
            if behaviours()[name].exit_code is not None:
                break
            wrong, left = run(behaviours()[name], allocator)
            if left and ON_RIG:
                wrong = wrong or f"it leaves {left} bytes allocated and reserved"
            lines.write(json.dumps({"done": name, "wrong": wrong}) + "\n")
            lines.flush()
            if left:  # a real card's libraries keep workspaces: the rest gets a fresh process
                os._exit(0)
        else:
            # Taking the interpreter apart would take longer than all the rest; exits.py has it.
            os._exit(0)
    behaviours()[name].check()


def use(allocator: str) -> None:
    """Put the allocator in place, before anything has used the card or, late, after."""
    os.environ["GMA_BEHAVIOUR_ALLOCATOR"] = allocator  # for processes that a behaviour starts
    if allocator == "bridge-late":
        torch.empty(1, device="cuda")
    if allocator != "native":
        import gpumem_alloc

        gpumem_alloc.enable(door="bridge")


def run(row: Behaviour, allocator: str) -> tuple[str, list[int]]:
    """What is wrong with a behaviour, "" if nothing is, and what it leaves: held(), or []."""
    if row.alone:  # it may want to be the first to use the card
        return judged(row, allocator), []
    settle()
    before = held()
    wrong = judged(row, allocator)
    settle()
    left = [now - then for now, then in zip(held(), before, strict=True)]
    return wrong, left if any(left) else []


def held() -> tuple[int, int]:
    """Bytes allocated and reserved."""
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def judged(row: Behaviour, allocator: str) -> str:
    """Hold a behaviour against what is declared for this allocator."""
    wrong = failure(row.check)
    if allocator == "native" or row.difference is None:
        return wrong
    if not wrong:
        return f"ours no longer differs; it was said to, because {row.difference.reason}"
    if "AssertionError" not in wrong:
        return f"ours is declared to differ, not to fail:\n{wrong}"
    settle()
    return failure(row.difference.check)


def failure(check: Check) -> str:
    """The traceback of a check, "" if it holds."""
    try:
        check()
    except Exception as error:
        shown = traceback.TracebackException.from_exception(error, capture_locals=True)
        for frame in shown.stack[:-1]:  # the place that failed is where values tell something
            frame.locals = None
        values = shown.stack[-1].locals or {}
        shown.stack[-1].locals = {name: value[:200] for name, value in values.items()}
        return "".join(shown.format())
    return ""


def settle() -> None:
    """Undo what behaviours do to a process: records, limits, caches and peaks."""
    gc.collect()
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
