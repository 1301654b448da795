"""What was asked for on the command line: checked, completed, or refused in three lines."""

from __future__ import annotations

import datetime
import difflib
import importlib
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .allocators import ALLOCATORS, find
from .passes.plan import (
    MAIN_ALLOCATORS,
    PASSES,
    SMOKE_ALLOCATORS,
    SMOKE_BUDGET_S,
    SMOKE_PASSES,
    SMOKE_WORKLOADS,
    Request,
)
from .passes.progress import Show
from .workloads import MAIN_WORKLOADS, WORKLOADS

HERE = Path(__file__).resolve().parent
ROUNDS = 3


class UsageError(Exception):
    """What was asked for cannot be; three lines: what, why, what to do."""


@dataclass(frozen=True)
class Options:
    """What was typed."""

    workloads: str
    allocators: str
    budget_minutes: float
    is_smoke: bool
    rounds: int | None
    passes: str
    limits_gb: list[int]
    known: list[Path]
    out: Path | None
    resume: bool
    html: Path | None
    pictures: Path | None
    traces: list[Path]
    require_gpu: bool
    install: bool
    as_json: bool
    command: list[str] | None


def make_request(options: Options) -> Request:
    """Check names and numbers; raises UsageError."""
    workloads = names(options.workloads, MAIN_WORKLOADS, WORKLOADS, "workloads")
    allocators = names(options.allocators, MAIN_ALLOCATORS, ALLOCATORS, "allocators")
    passes = names(options.passes, PASSES, PASSES, "passes")
    if options.is_smoke:
        workloads = SMOKE_WORKLOADS if options.workloads == "main" else workloads
        allocators = SMOKE_ALLOCATORS if options.allocators == "main" else allocators
        passes = SMOKE_PASSES if options.passes == "all" else passes
    if not options.budget_minutes >= 0:  # nan neither
        raise UsageError(
            f"--budget: {options.budget_minutes:g} minutes are no time.\n"
            "What does not fit into it is left out.\n"
            "Give a number above 0, or 0 for no end."
        )
    budget_s = 60 * options.budget_minutes or math.inf
    return Request(
        workloads=workloads,
        allocators=allocators,
        passes=passes,
        rounds=options.rounds or (1 if options.is_smoke else ROUNDS),
        limits_gb=tuple(options.limits_gb) or (None,),
        budget_s=min(SMOKE_BUDGET_S, budget_s) if options.is_smoke else budget_s,
        is_smoke=options.is_smoke,
    )


def names(text: str, main: Iterable[str], known: Iterable[str], option: str) -> tuple[str, ...]:
    """Split names at commas; main and all are groups. Raises UsageError for an unknown one."""
    groups = {"main": main, "all": known}
    found: dict[str, None] = {}
    for name in filter(None, map(str.strip, text.split(","))):
        found |= dict.fromkeys(groups.get(name, (name,)))
        try:
            if option == "allocators" and name not in groups:
                find(name)
            elif name not in groups and name not in known:
                near = difflib.get_close_matches(name, known, 3, 0.5)
                hint = f"; near it is {', '.join(near)}" if near else ""
                raise ValueError(f"{name} is not known{hint}")
        except ValueError as error:
            raise UsageError(
                f"--{option}: {str(error).rstrip('.')}.\n"
                f"There are {', '.join(known)}.\n"
                "Give names with commas between them, main, or all."
            ) from None
    if not found:
        raise UsageError(
            f"--{option} names nothing.\nThere are {', '.join(known)}.\nName one, main, or all."
        )
    return tuple(found)


def check_command(command: list[str]) -> None:
    """Raise UsageError for a command of the user's that cannot be started."""
    if command and shutil.which(command[0]):
        return
    name = repr(command[0]) if command else "nothing"
    raise UsageError(
        f"after -- comes {name}, and that is no program here.\n"
        "What follows -- is run as it is, under each allocator.\n"
        "Write it as you would start it: bench -- python train.py"
    )


def with_what_is_there(request: Request, options: Options, show: Show) -> Request:
    """Leave out what lacks its libraries, or install them. Raises UsageError if nothing is left."""
    workloads = () if options.command else request.workloads
    things = {name: WORKLOADS[name] for name in workloads} | {
        name: find(name) for name in request.allocators
    }
    by_pip = [name for name, thing in things.items() if not getattr(thing, "wrapper", ())]
    wanted = {each for name in by_pip for each in things[name].missing}
    if wanted and options.install:
        show.say(f"installing {', '.join(sorted(wanted))}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", *sorted(wanted)]
        subprocess.run(pip, check=False)  # what is still missing is left out
        importlib.invalidate_caches()
    lacking = {name: thing.missing for name, thing in things.items() if thing.missing}
    for name, missing in lacking.items():
        text = " ".join(map(shlex.quote, missing))
        needs = f"python -m pip install {text}" if name in by_pip else ", ".join(missing)
        show.say(f"{name}: left out, it needs: {needs}")
    there = [name for name in things if name not in lacking]
    left = replace(
        request,
        workloads=tuple(name for name in request.workloads if name in there),
        allocators=tuple(name for name in request.allocators if name in there),
    )
    if not left.allocators or not (left.workloads or options.command):
        raise UsageError(
            "nothing of what was asked for can run here.\n"
            "Libraries are missing, see above.\nInstall them, or add --install."
        )
    return left


def command_line() -> str:
    """Return what was typed, without the places of this machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "gpumem_alloc", *words])


def results_path(options: Options, machine: dict[str, Any]) -> Path:
    """Return where rows go. Raises UsageError where rows of another run would be mixed in."""
    if options.out is None:
        return default_path(options.resume, machine)
    check_folder(options.out)
    check_new(options.out, options.resume)
    return options.out


def check_new(path: Path, resume: bool) -> None:
    """Raise UsageError where the results of another run are, unless it is to go on."""
    if path.is_file() and not resume:  # anything else is refused where it is opened
        raise UsageError(
            f"{path} is there already.\n"
            "A run neither adds to results of another one by accident nor takes their place.\n"
            "Give --resume to go on with that file, or another name."
        )


def check_folder(path: Path) -> None:
    """Raise UsageError for a file in a folder that is not there."""
    if not path.parent.exists():
        raise UsageError(
            f"{path} cannot be written.\n"
            f"There is no folder {path.parent}, and --out makes none.\n"
            "Make it, or name a file in another folder."
        )


def default_path(resume: bool, machine: dict[str, Any]) -> Path:
    """Return a new file's name, or the newest one's to resume; beside this in a checkout."""
    is_checkout = __package__ == "benchmarks"
    folder = HERE / "out" if is_checkout else Path.cwd()
    gpu = re.sub(r"[^a-z0-9]+", "-", str(machine["gpu"]).lower()).strip("-")
    there = sorted(folder.glob(f"bench-*-{gpu}.json"))
    if resume and there:
        return there[-1]
    now = datetime.datetime.now(datetime.timezone.utc)
    return folder / f"bench-{now:%Y-%m-%d-%H%M%S}-{gpu}.json"
