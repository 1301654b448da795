"""What `bench` does when it measures: checks what was asked for, then plans, runs and shows."""

from __future__ import annotations

import datetime
import difflib
import importlib
import json
import math
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from gpumem_alloc.bridge.wanted import wanted_door

from . import outputs, replays, room, script
from .allocators import ALLOCATORS, find
from .environment import environment
from .plan import (
    MAIN_ALLOCATORS,
    PASSES,
    SMOKE_ALLOCATORS,
    SMOKE_BUDGET_S,
    SMOKE_PASSES,
    SMOKE_WORKLOADS,
    Request,
)
from .progress import Show
from .runner import Runner
from .store import Store
from .workloads import MAIN_WORKLOADS, WORKLOADS

HERE = Path(__file__).resolve().parent
FAILED = 1
INTERRUPTED = 130
ROUNDS = 3


class UsageError(Exception):
    """What was asked for cannot be; three lines: what, why, what to do."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM."""


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
    out: Path | None
    resume: bool
    html: Path | None
    pictures: Path | None
    traces: list[Path]
    require_gpu: bool
    install: bool
    as_json: bool
    command: list[str] | None


def bench(options: Options) -> int:
    """Measure, or replay where there is no GPU; returns the exit code. Raises UsageError."""
    show = Show()
    request = make_request(options)
    outputs.check(options.html, options.pictures)
    if options.traces:
        return replay(options, options.traces)
    machine = environment()
    if machine["gpu"] is None or machine["torch"] is None:
        return without_gpu(options, machine, show)
    request = with_what_is_there(request, options, show)
    build_bridge(request, show)
    store = Store(results_path(options, machine), command_line(), machine)
    with interrupts():
        try:
            with show:
                measure(options, request, store, show)
        except Interrupted:
            show.say(
                f"interrupted: {len(store.mine())} rows are kept; go on with --resume "
                f"--out {shlex.quote(str(store.path))}"
            )
            return INTERRUPTED
    return finish(options, store, show)


def measure(options: Options, request: Request, store: Store, show: Show) -> None:
    """Run the user's command or the plan."""
    if options.command is None:
        Runner(request, store, room.ask, show).run()
        return
    names, rounds = request.allocators, request.rounds
    script.bench(options.command, names, rounds, request.budget_s, store, show)


def finish(options: Options, store: Store, show: Show) -> int:
    """Show the results, write what was asked for, and return the exit code."""
    if not store.mine():
        show.say("nothing was measured: the file has all of it, or the time was too short")
    if not store.results.rows:
        return FAILED
    print(
        json.dumps(outputs.as_json(store.results))
        if options.as_json
        else outputs.text(store.results)
    )
    if options.html is not None:
        outputs.write_html(store.results, options.html)
        show.say(f"report: {options.html}")
    if options.pictures is not None:
        outputs.write_pictures(store.results, options.pictures)
        show.say(f"pictures: {options.pictures}")
    show.say(f"results: {store.path}")
    wrong = outputs.failures(store.results)
    for line in wrong:
        show.say(f"wrong: {line}")
    return FAILED if wrong else 0


def without_gpu(options: Options, machine: dict[str, Any], show: Show) -> int:
    """Replay recorded runs instead; raises UsageError where that is not what was wanted."""
    lacks = "torch is not installed" if machine["gpu"] else "no GPU was found"
    if options.require_gpu or options.command is not None:
        raise UsageError(
            f"nothing was measured: {lacks}.\n"
            "Allocators are measured on a card, with a CUDA build of torch.\n"
            "Without one, `bench` replays recorded runs and `replay` your own."
        )
    show.say(replays.ONE_LINE.replace("no GPU was found", lacks))
    return replay(options, replays.bundled())


def replay(options: Options, paths: list[Path]) -> int:
    """Replay recordings; raises UsageError for one that cannot be read."""
    try:
        replays.run(paths, options.as_json, options.pictures)
    except replays.ReplayError as error:
        raise UsageError(str(error)) from None
    return 0


# What was asked for.


def make_request(options: Options) -> Request:
    """Check names and numbers; raises UsageError."""
    workloads = names(options.workloads, MAIN_WORKLOADS, WORKLOADS, "workloads")
    allocators = names(options.allocators, MAIN_ALLOCATORS, ALLOCATORS, "allocators")
    passes = names(options.passes, PASSES, PASSES, "passes")
    if options.is_smoke:
        workloads = SMOKE_WORKLOADS if options.workloads == "main" else workloads
        allocators = SMOKE_ALLOCATORS if options.allocators == "main" else allocators
        passes = SMOKE_PASSES if options.passes == "all" else passes
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
    for name in filter(None, text.split(",")):
        found |= dict.fromkeys(groups.get(name, (name,)))
        try:
            if option == "allocators" and name not in groups:
                find(name)
            elif name not in groups and name not in known:
                near = difflib.get_close_matches(name, known, 3, 0.5)
                raise ValueError(f"{name} is not known; near it is {', '.join(near) or 'nothing'}")
        except ValueError as error:
            raise UsageError(
                f"--{option}: {error}.\n"
                f"There are {', '.join(known)}.\n"
                "Give names with commas between them, main, or all."
            ) from None
    if not found:
        raise UsageError(
            f"--{option} names nothing.\nThere are {', '.join(known)}.\nName one, main, or all."
        )
    return tuple(found)


def with_what_is_there(request: Request, options: Options, show: Show) -> Request:
    """Leave out what lacks its libraries, or install them. Raises UsageError if nothing is left."""
    workloads = () if options.command else request.workloads
    things = {name: WORKLOADS[name] for name in workloads} | {
        name: find(name) for name in request.allocators
    }
    wanted = {each for thing in things.values() for each in thing.missing}
    if wanted and options.install:
        show.say(f"installing {', '.join(sorted(wanted))}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", *sorted(wanted)]
        subprocess.run(pip, check=False)  # what is still missing is left out
        importlib.invalidate_caches()
    lacking = {name: thing.missing for name, thing in things.items() if thing.missing}
    for name, missing in lacking.items():
        text = " ".join(map(shlex.quote, missing))
        show.say(f"{name}: left out, it needs: python -m pip install {text}")
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


def build_bridge(request: Request, show: Show) -> None:
    """Compile the bridge before the clock of the first run that needs it."""
    doors = {find(name).door for name in request.allocators}
    if doors & {"auto", "bridge"} and wanted_door(None) != "stock":
        command = [sys.executable, "-m", "gpumem_alloc", "bridge", "build"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            show.say(f"ours goes through the stock door: {done.stderr.strip()}")


def command_line() -> str:
    """Return what was typed, without the places of this machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "gpumem_alloc", *words])


# The results file.


def results_path(options: Options, machine: dict[str, Any]) -> Path:
    """Return where rows go. Raises UsageError where rows of another run would be mixed in."""
    if options.out is None:
        return default_path(options.resume, machine)
    if options.out.exists() and not options.resume:
        raise UsageError(
            f"{options.out} is there already.\n"
            "A run does not add to results of another one by accident.\n"
            "Give --resume to go on with that file, or another name."
        )
    return options.out


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


@contextmanager
def interrupts() -> Iterator[None]:
    """Make SIGINT and SIGTERM raise Interrupted, once: what follows is left to run to its end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
