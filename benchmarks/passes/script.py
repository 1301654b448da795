"""Runs a user's command under each allocator, as it stands, and compares.

    python -m gpumem_alloc bench -- python train.py --epochs 1

The allocator is put in place by inject/sitecustomize.py, so the program and the processes that it
starts need not know of it. What is measured: the card, polled from beside; the time from start to
end; the time from one optimizer step to the next; the allocator's own figures at the end. Nothing
is synchronised for that: steps are measured on the host.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gpumem_alloc

from ..allocators import choose, find
from ..store import Row, Store, key
from ..workers.card_memory import CardMemory
from ..workers.in_script import FIGURES
from ..workers.process import is_out_of_memory
from .progress import Show

INJECT = Path(__file__).resolve().parent.parent / "workers" / "inject"
NOT_REACHED = (
    "the program never imported torch with the benchmark's hook in place: either it does not use "
    "torch, or its Python was started with -I, -E or -S"
)
OUTPUT_LINES = 30


def name_of(command: Sequence[str]) -> str:
    """Return what tables call a command: its script, without folders and interpreter."""
    words = [Path(word).name if "/" in word else word for word in command]
    scripts = [at for at, word in enumerate(words) if word.endswith((".py", ".sh"))]
    return shlex.join(words[scripts[0] :] if scripts else words)[:60]


def environment(allocator: str, records: Path) -> dict[str, str]:
    """Return the environment in which a command runs under an allocator.

    Raises ValueError for an allocator that does not exist.
    """
    found = dict(os.environ)
    choose(allocator, found)
    settings = {
        "allocator": allocator,
        "records": str(records),
        "folder": str(Path(gpumem_alloc.__file__).resolve().parent.parent),
    }
    found["GPUMEM_ALLOC_BENCH"] = json.dumps(settings)
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(INJECT), found.get("PYTHONPATH")]))
    return found


def run(command: Sequence[str], allocator: str) -> Row:
    """Run the command once; a failure is a row with `error`, and with the end of its output."""
    with tempfile.TemporaryDirectory(prefix="gpumem_alloc-bench-") as place:
        records, output = Path(place) / "records", Path(place) / "output"
        records.mkdir()
        with CardMemory(0) as card, output.open("wb") as file:
            card.begin()
            began = time.perf_counter()
            words = [*find(allocator).wrapper, *command]
            code = _wait(words, environment(allocator, records), file)
            wall_s = time.perf_counter() - began
        text = output.read_text(errors="replace")
        row = {
            "workload": name_of(command),
            "allocator": allocator,
            "command": list(command),
            "exit_code": code,
            "wall_s": round(wall_s, 3),
            "run_s": round(wall_s, 3),
            "card": None if card.seen is None else vars(card.seen),
            "driver": None,
            **_told([json.loads(each.read_text()) for each in records.glob("*.json")], wall_s),
        }
    if code != 0:
        row["error"] = f"exit code {code}" if code >= 0 else f"ended by signal {-code}"
        last = [line for line in text.splitlines() if line.strip()][-1:]
        row["error"] = ": ".join([row["error"], *last])
    if "error" in row:
        row["out_of_memory"] = is_out_of_memory(text)
        row["output"] = "\n".join(text.splitlines()[-OUTPUT_LINES:])
    return row


def _wait(command: Sequence[str], variables: dict[str, str], output: Any) -> int:
    """Run to the end and return the exit code; nothing that it started outlives an interrupt."""
    try:
        child = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        output.write(f"{command[0]}: {error.strerror}\n".encode())
        return 127
    try:
        return child.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise


def _told(records: list[dict[str, Any]], wall_s: float) -> Row:
    """Return what the program's processes wrote down: the figures of the one that held the most.

    A program without an optimizer counts as one step.
    """
    reached = [record for record in records if record.get("reached")]
    failed = [record["error"] for record in records if "error" in record]
    with_figures = [record["figures"] for record in reached if record.get("figures")]
    most: dict[str, int] = max(
        with_figures, key=lambda each: each.get("reserved_peak_bytes") or 0, default={}
    )
    steps = max((record.get("step_ms") or [] for record in reached), key=len, default=[])
    row: Row = {name: most.get(name) for name in FIGURES}
    row |= {
        "processes": len(with_figures),
        "step_ms": steps or [round(1e3 * wall_s, 3)],
        "losses": [],
        "startup_s": None,
    }
    doors = {record["door"] for record in reached if record.get("door")}
    if doors:
        row["door"] = "/".join(sorted(doors))
    if failed or not reached:
        row["error"] = failed[0] if failed else NOT_REACHED
    return row


def bench(
    command: Sequence[str],
    allocators: Sequence[str],
    rounds: int,
    budget_s: float,
    store: Store,
    show: Show,
) -> None:
    """Run rounds while they fit in the time, one at least; the order alternates.

    An allocator under which the command failed is not tried again.
    """
    begin = time.monotonic()
    show.say(f"plan: {shlex.join(command)}: {', '.join(allocators)}, up to {rounds} rounds")
    done = store.results.done()
    failed = {
        row["allocator"]
        for row in store.results.rows
        if row.get("command") == list(command) and "error" in row
    }
    longest_s = 0.0
    for index in range(rounds):
        began = time.monotonic()
        if index and longest_s > budget_s - (began - begin):
            show.say(f"left out, the time was over: rounds {index + 1} to {rounds}")
            break
        for place, name in enumerate(allocators[:: -1 if index % 2 else 1]):
            wanted: Row = {"kind": "script", "round": index, "group": None}
            wanted |= {"command": list(command), "workload": name_of(command), "allocator": name}
            if name in failed or key(wanted) in done:
                continue
            runs_left = (rounds - index) * len(allocators) - place
            known_s = min(runs_left * longest_s / len(allocators), budget_s)
            left_s = known_s if index else None
            show.part(f"{name}, round {index + 1}", place, len(allocators), left_s)
            row = wanted | run(command, name)
            store.add(row)
            show.rows([row])
            if "error" in row:
                failed.add(name)
                if row.get("output"):
                    show.say(_indented(row["output"]))
        longest_s = max(longest_s, time.monotonic() - began)


def _indented(text: str) -> str:
    return "\n".join(f"    | {line}" for line in text.splitlines())
