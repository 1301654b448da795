"""Processes that measure the host's side, one for each allocator, and the file of what they found.

Shared by host_cost.py and scale.py. Each prints a line, ROW and JSON, or one after each part.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..allocators import find
from ..workers.children import command
from ..workers.process import child_environment

Row = dict[str, Any]
ERROR_LINES = 4


def is_installed(module: str) -> bool:
    """Say whether a module can be imported."""
    return importlib.util.find_spec(module) is not None


def names(text: str) -> list[str]:
    """Split a comma-separated argument of allocators. Raises ArgumentTypeError."""
    found = [name for name in text.split(",") if name]
    try:
        for name in found:
            if find(name).wrapper:
                raise ValueError(f"{name} is a tool, whose cost is not an allocator's on the host")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found


def run_worker(worker: str, allocator: str, library: Path, extra: list[str], seconds: float) -> Row:
    """Measure one allocator in a process of its own; a failure is a row with `error`.

    Of several rows that it prints the last one counts, which is there after a failure too.
    """
    words = command(f"host.{worker}", "--allocator", allocator, "--library", str(library), *extra)
    try:
        done = subprocess.run(
            words, env=child_environment(allocator), capture_output=True, text=True,
            errors="replace", timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""  # bytes, whatever was asked for
        text = said if isinstance(said, str) else said.decode(errors="replace")
        found = _last_row(text)
        return {"allocator": allocator, **found, "error": f"no end after {seconds:.0f} s"}
    found = _last_row(done.stdout)
    if done.returncode == 0 and found:
        return found
    end = " | ".join(done.stderr.strip().splitlines()[-ERROR_LINES:])
    return {"allocator": allocator, **found, "error": f"exit code {done.returncode}: {end}"}


def _last_row(text: str) -> Row:
    whole = text.rpartition("\n")[0]  # what comes after was not written to its end
    lines = [line for line in whole.splitlines() if line.startswith("ROW ")]
    return dict(json.loads(lines[-1][4:])) if lines else {}


def command_line() -> str:
    """Return what this program was started with, without the places of this machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return " ".join([f"python -m {__package__}.{Path(sys.argv[0]).stem}", *words])


def write(rows: list[Row], path: Path, machine: dict[str, Any], **more: Any) -> None:
    """Write the rows, and on what they were measured."""
    results = {
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        "command": command_line(),
        "machine": machine,
        **more,
        "rows": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(".new")  # whoever reads meanwhile finds a whole file
    written.write_text(json.dumps(results, indent=1) + "\n")
    written.replace(path)
