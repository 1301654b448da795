"""What `bench` does when it measures: checks what was asked for, then plans, runs and shows."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from gpumem_alloc.bridge.wanted import wanted_door

from . import replays
from .allocators import find
from .asked import (
    Options,
    UsageError,
    check_command,
    command_line,
    make_request,
    results_path,
    with_what_is_there,
)
from .passes import plan, room, script
from .passes.plan import Request
from .passes.progress import Show
from .passes.runner import Runner
from .report import outputs
from .store import Row, Store, load_all, rows_on
from .workers.environment import environment

FAILED = 1
INTERRUPTED = 130


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM."""


def bench(options: Options) -> int:
    """Measure, or replay where there is no GPU; returns the exit code. Raises UsageError."""
    show = Show()
    request = make_request(options)
    outputs.check(options.html, options.pictures)
    known = load_all(options.known)
    store: Store | None = None
    with interrupts():
        try:
            if options.traces:
                return replay(options, options.traces, show)
            machine = environment()
            if (lacks := what_is_missing(machine)) is not None:
                return without_gpu(options, lacks, show)
            if options.command is not None:
                check_command(options.command)
                tell_without_effect(options, {}, "a command", show)
            store = Store(results_path(options, machine), command_line(), machine)
            if options.resume:
                show.say(f"{store.path}: goes on, rows so far: {len(store.results.rows)}")
            request = with_what_is_there(request, options, show)
            if options.command is None and not plan.make(request):
                raise UsageError(plan.nothing(request))
            if machine["other_processes"]:
                show.say(
                    f"other processes use this card: {machine['other_processes']}; "
                    "peaks of the card count them, and times are theirs too"
                )
            build_bridge(request, show)
            with show:
                measure(options, request, store, show, rows_on(known, machine["gpu"]))
            return finish(options, store, show)
        except Interrupted:
            return tell_interrupted(store, show)


def tell_interrupted(store: Store | None, show: Show) -> int:
    """Say what is kept, and how to go on."""
    if store is None or not store.results.rows:
        show.say("interrupted: nothing was measured yet")
    else:
        path = shlex.quote(str(store.path))
        rows = len(store.mine())
        show.say(f"interrupted: rows kept: {rows}; go on with --resume --out {path}")
    return INTERRUPTED


def measure(options: Options, request: Request, store: Store, show: Show, known: list[Row]) -> None:
    """Run the user's command or the plan."""
    if options.command is None:
        Runner(request, store, room.ask, show, known).run()
        return
    names, rounds = request.allocators, request.rounds
    script.bench(options.command, names, rounds, request.budget_s, store, show)


def finish(options: Options, store: Store, show: Show) -> int:
    """Show the results, write what was asked for, and return the exit code."""
    if not store.mine():
        show.say("nothing new was measured: the file has all of it, or --budget is too short")
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
        for path in outputs.write_pictures(store.results, options.pictures):
            show.say(f"picture: {path}")
    show.say(f"results: {store.path}")
    wrong = outputs.failures(store.results)
    for line in wrong:
        show.say(f"wrong: {line}")
    return FAILED if wrong else 0


def what_is_missing(machine: dict[str, Any]) -> str | None:
    """Say why nothing can be measured on a card here; None if it can."""
    if machine["gpu"] is None:
        return "no GPU was found"
    if machine["torch"] is None:
        return "torch is not installed"
    return "this torch is a build without CUDA" if machine["cuda"] is None else None


def without_gpu(options: Options, lacks: str, show: Show) -> int:
    """Replay recorded runs instead; raises UsageError where that is not what was wanted."""
    if options.require_gpu or options.command is not None:
        raise UsageError(
            f"nothing was measured: {lacks}.\n"
            "Allocators are measured on a card, with a CUDA build of torch.\n"
            "Without one, `bench` replays recorded runs and `replay` your own."
        )
    show.say(f"{lacks}: {replays.INSTEAD}")
    return replay(options, replays.bundled(), show)


def replay(options: Options, paths: list[Path], show: Show) -> int:
    """Replay recordings; raises UsageError for one that cannot be read."""
    more = {
        "--allocators": options.allocators != "main",
        "--out": options.out,
        "--resume": options.resume,
        "--html": options.html,
    }
    tell_without_effect(options, more, "a replay", show)
    try:
        replays.run(paths, options.as_json, options.pictures)
    except replays.ReplayError as error:
        raise UsageError(str(error)) from None
    return 0


def tell_without_effect(options: Options, more: dict[str, Any], where: str, show: Show) -> None:
    """Name the options that were given and that only the benchmark's own runs heed."""
    given = {
        "--workloads": options.workloads != "main",
        "--passes": options.passes != "all",
        "--limit": options.limits_gb,
        "--known": options.known,
    } | more
    if names := [name for name, is_given in given.items() if is_given]:
        show.say(f"without effect on {where}: {', '.join(names)}")


def build_bridge(request: Request, show: Show) -> None:
    """Compile the bridge before the clock of the first run that needs it."""
    doors = {find(name).door for name in request.allocators}
    if doors & {"auto", "bridge"} and wanted_door(None) != "stock":
        command = [sys.executable, "-m", "gpumem_alloc", "bridge", "build"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            show.say(f"ours goes through the stock door: {done.stderr.strip()}")


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
