"""What the commands do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from gpumem_alloc import _C, recording, sizes
from gpumem_alloc import replay as replays
from gpumem_alloc.cli import tables
from gpumem_alloc.trace import TraceError, read_trace, write_trace

RAN_OUT_OF_MEMORY = 3
LONG_FILE_BYTES = 256 << 10

stdout = Console()
stderr = Console(stderr=True)


@dataclass(frozen=True)
class ReplaySettings:
    """What `replay` was asked for, as it was typed."""

    allocators: list[str]
    limit: str | None
    repeat: int
    lag_ms: float
    device: int | None


def replay(path: Path, settings: ReplaySettings, *, as_json: bool) -> int:
    """Replay a file and print the report; returns the exit code.

    Raises SettingsError before anything is read, and TraceError.
    """
    specs = [replays.parse_allocator(text) for text in settings.allocators]
    limit_bytes = _limit_bytes(settings.limit)
    with _progress(path, len(specs) + 1) as advance:
        advance(f"reading {path.name}")
        trace = read_trace(path, settings.device)
        report = replays.replay(
            trace,
            specs,
            limit_bytes=limit_bytes,
            repeat=settings.repeat,
            lag_ms=settings.lag_ms,
            progress=advance,
        )
    report["trace"] = str(path)
    if as_json:
        print(json.dumps(report))
    else:
        tables.print_replay(stdout, report, trace.notes)
    ran_out = any(result["oom"] is not None for result in report["results"])
    return RAN_OUT_OF_MEMORY if ran_out else 0


def _limit_bytes(text: str | None) -> int:
    if text is None:
        return 0
    try:
        limit_bytes = sizes.to_bytes(text)
    except (ValueError, OverflowError) as error:
        raise replays.SettingsError(f"--limit: {error}") from None
    if not 0 < limit_bytes < _C.max_request_bytes:
        raise replays.SettingsError(f"--limit: {text} is not between 1 byte and 1 EiB")
    return limit_bytes


@contextmanager
def _progress(path: Path, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr, where that is a terminal and the file is long."""
    is_long = path.is_file() and path.stat().st_size > LONG_FILE_BYTES
    with Progress(
        console=stderr, transient=True, disable=not (is_long and stderr.is_terminal)
    ) as bar:
        task = bar.add_task("", total=total)

        def advance(what: str) -> None:
            done = 0 if bar.tasks[0].description == "" else 1
            bar.update(task, description=what, advance=done)

        yield advance


def convert(source: Path, target: Path, device: int | None) -> None:
    """Write a trace in our own format; raises TraceError."""
    trace = read_trace(source, device)
    try:
        write_trace(trace, target)
    except OSError as error:
        raise TraceError(target, error.strerror or str(error)) from None
    stderr.print(
        f"{target}: {len(trace.events):,} events of device {trace.device}", highlight=False
    )
    for note in trace.notes:
        stderr.print(note, highlight=False)


def record(script: Path, arguments: list[str], output: Path) -> int:
    """Run a script, write what it allocated, and return its exit code."""
    code = recording.record_script(script, arguments, output)
    stderr.print(f"recorded to {output}", highlight=False)
    return code


def microbench(options: str, seconds: float, *, as_json: bool) -> None:
    """Measure and print; raises SettingsError for bad options."""
    if not 0.001 <= seconds <= 60:
        raise replays.SettingsError(f"--seconds must be 0.001 to 60, not {seconds:g}")
    try:
        _C.parse_options(options)
    except _C.StatusError as error:
        raise replays.SettingsError(str(error.args[1])) from None
    result: dict[str, Any] = _C.microbench(options, seconds)
    if as_json:
        print(json.dumps(result))
    else:
        tables.print_microbench(stdout, result)
