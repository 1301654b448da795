"""Says what is running, what came out, and how long it still takes.

It goes to stderr, so that stdout is the result's alone. On a terminal a line moves; elsewhere there
are plain lines.
"""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from ..store import Row
from .plan import minutes

MIB = 1 << 20


class _Left(ProgressColumn):
    """Counts down to the time at which everything should be done."""

    def render(self, task: Task) -> Text:
        end = task.fields["end"]
        if end is None:
            return Text("")
        return Text(f"about {minutes(max(0.0, end - time.monotonic()))} left")


class Show:
    """Progress through a plan, measured in seconds of work."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.begin = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(),
            _Left(),
            BarColumn(24),
            TextColumn("{task.description}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("", total=1.0, end=self.begin)

    def __enter__(self) -> Show:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print lines that stay."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def part(self, what: str, index: int, count: int, left_s: float | None) -> None:
        """Say which part of the plan begins, and how long all the rest takes, if that is known."""
        now = time.monotonic()
        taken_s = now - self.begin
        done = 0.0 if left_s is None else taken_s / max(taken_s + left_s, 1e-9)
        end = None if left_s is None else now + left_s
        self._bar.update(self._task, description=what, completed=done, end=end)
        if not self.console.is_terminal:
            left = "" if left_s is None else f", about {minutes(left_s)} left"
            self.say(f"[{index + 1}/{count}{left}] {what}")

    def detail(self, what: str) -> None:
        """Say how far the part is; only on a terminal."""
        self._bar.update(self._task, description=what)

    def rows(self, rows: list[Row]) -> None:
        """Print one line for each row."""
        for row in rows:
            self.say(f"  {one_line(row)}")


def one_line(row: Row) -> str:
    """Return what a person who follows a run wants to see of a row."""
    door = f" ({row['door']})" if row.get("door") else ""
    head = f"{row.get('workload') or '':16} {row['allocator'] + door:20}"
    if row.get("error"):
        return f"{head} {row['error']}"
    return f"{head} {', '.join(_figures(row))}"


def _figures(row: Row) -> list[str]:
    found = []
    card: dict[str, Any] = row.get("card") or {}
    for name, size_bytes in (
        ("live", row.get("live_peak_bytes")),
        ("reserved", row.get("reserved_peak_bytes")),
        ("card", card.get("peak_bytes")),
    ):
        if size_bytes is not None:
            found.append(f"{name} {size_bytes / MIB:,.0f} MiB")
    if times := sorted(row.get("step_ms") or []):
        found.append(f"step {times[len(times) // 2]:,.2f} ms")
    for name in ("wall_s", "run_s"):
        if row.get(name) is not None:
            found.append(f"{row[name]:.1f} s")
            break
    if row["kind"] == "capacity":
        found.append(f"{row.get('size')} {row.get('unit') or ''}".rstrip())
    if row.get("fits") is not None:
        found.append("fits" if row["fits"] else "does not fit")
    return found
