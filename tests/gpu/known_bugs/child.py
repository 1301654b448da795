"""One case under one level in a process of its own, since a fault ends its CUDA context.

    python -m tests.gpu.known_bugs.child less_or_equal strict wrong
    python -m tests.gpu.known_bugs.child less_or_equal strict right

It prints one line of JSON: {"case", "level", "wrong", "outcome", "detail"}.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from tests.gpu.known_bugs import host, levels, nvrtc
from tests.gpu.known_bugs.kernels import Kernels, Module, Size, compiled_path, signatures
from tests.gpu.known_bugs.table import GROUPS, LEVELS, Case, Level, Result, cases, source

Outcome = Literal["fault", "violation", "poison", "nothing", "wrong result", "error"]
SECONDS = 60
# What a use of memory that is not there ends in, in the words of the runtime and of the driver.
FAULTS = (
    "illegal memory access",
    "unspecified launch failure",
    "ILLEGAL_ADDRESS",
    "LAUNCH_FAILED",
)


def on_rig() -> bool:
    """Say whether this is the stand-in card."""
    return os.environ.get("GMA_TEST_MACHINE") == "rig"


def compile_all(folder: Path) -> None:
    """Compile the kernels of all groups, for the current card, into `folder`."""
    for group in GROUPS:
        for wrong in (False, True):
            compile_group(group, wrong, compiled_path(folder, group, wrong))


def compile_group(group: str, wrong: bool, path: Path) -> None:
    """Compile the kernels of one group for the current card."""
    if on_rig():
        host.compile_library(source(group), wrong, path)
        return
    import torch

    major, minor = torch.cuda.get_device_capability()
    path.write_bytes(nvrtc.compile_source(source(group), wrong, f"sm_{major}{minor}"))


class Unlaunched:
    """For a stand-in card that cannot show the case: arguments are checked, nothing runs."""

    def launch(self, name: str, blocks: Size, threads: Size, values: list[Any]) -> None:
        """See kernels.Module."""


def loaded(torch: Any, case: Case, wrong: bool, folder: Path) -> Kernels:
    """Return the kernels of a case, which compile_group() has put into `folder`."""
    text = source(case.group)
    path = compiled_path(folder, case.group, wrong)
    module: Module
    if not on_rig():
        module = nvrtc.CardModule(torch, path.read_bytes(), signatures(text))
    elif case.card_only:
        module = Unlaunched()
    else:
        module = host.HostModule(path)
    return Kernels(torch, text, module)


def is_fault(torch: Any, error: Exception) -> bool:
    """Say whether an exception comes from memory that a kernel must not use."""
    texts = [str(error)]
    try:
        torch.cuda.synchronize()
    except Exception as later:  # whatever the type, the text tells
        texts.append(str(later))
    return any(fault in text for text in texts for fault in FAULTS)


def judged(torch: Any, result: Result) -> tuple[Outcome, str]:
    """Say what a program could know of its result, and then what we know."""
    if result.refused:
        return "violation", result.refused
    if result.got is None:
        return "nothing", ""
    if result.got.is_floating_point() and bool(torch.isnan(result.got).any()):
        return "poison", f"{int(torch.isnan(result.got).sum())} NaN of {result.got.numel()}"
    if result.got.shape == result.expected.shape and torch.allclose(result.got, result.expected):
        return "nothing", ""
    return "wrong result", f"{result.got.flatten()[:4].tolist()} ..."


def observe(torch: Any, case: Case, level: Level, wrong: bool, folder: Path) -> tuple[Outcome, str]:
    """Run a case in this process, where its level is in force."""
    try:
        result = case.run(torch, loaded(torch, case, wrong, folder), wrong)
        gc.collect()
        torch.cuda.synchronize()
        found = levels.findings(level)
    except Exception as error:
        kind: Outcome = "fault" if is_fault(torch, error) else "error"
        return kind, f"{type(error).__name__}: {error}".splitlines()[0]
    if found:
        return "violation", found[0]
    if case.card_only and on_rig():  # no kernel ran, so no result is right
        return "nothing", ""
    return judged(torch, result)


def line(name: str, level: Level, wrong: bool, outcome: Outcome, detail: str) -> str:
    """Make the line that runner.py reads."""
    seen = {"case": name, "level": level, "wrong": wrong, "outcome": outcome, "detail": detail}
    return json.dumps(seen)


def main(name: str, level: Level, wrong: bool, folder: Path) -> None:
    """Run a case in a fresh process, print its line and end."""
    signal.alarm(SECONDS)
    case = cases()[name]
    try:
        import torch

        levels.enable(level, case.options)
        outcome, detail = observe(torch, case, level, wrong, folder)
    except Exception as error:
        outcome, detail = "error", f"{type(error).__name__}: {error}"
    print(line(name, level, wrong, outcome, detail), flush=True)
    if outcome in ("fault", "error"):
        os._exit(0)  # the context is gone, and what is still alive cannot be freed


def native_on_rig(folder: Path) -> None:
    """Run every case both ways in this one process, and print a line for each.

    Only natively, where no case faults, and on the stand-in card, where a fault ends the process.
    """
    assert on_rig()
    import torch

    for case in cases().values():
        for wrong in (True, False):
            outcome, detail = observe(torch, case, "native", wrong, folder)
            print(line(case.name, "native", wrong, outcome, detail), flush=True)


def by_hand(name: str, level: str, twin: str) -> None:
    """Compile what one case needs, and run it."""
    assert level in LEVELS
    wrong = {"wrong": True, "right": False}[twin]
    with tempfile.TemporaryDirectory() as made:
        folder, group = Path(made), cases()[name].group
        compile_group(group, wrong, compiled_path(folder, group, wrong))
        main(name, level, wrong, folder)


if __name__ == "__main__":
    by_hand(*sys.argv[1:])
