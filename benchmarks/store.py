"""Results files: what was measured, where, and nothing that can be computed from it.

    {"format": 2,
     "sessions": [{"date", "command", "environment": {...}}, ...],
     "rows": [{"session": 0, "kind": "times", "workload": ..., ...}, ...]}

A session is one start of the program; row["session"] is its place in the list. row["group"] numbers
the rows that were measured in lockstep, and is unique in a file and in a merged table. row["round"]
counts within a session. A file is written anew, whole, after every row: whoever reads it while it
grows, or after the program was killed, finds a good one.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 2
Row = dict[str, Any]
FIGURES = (
    "live_peak_bytes", "requested_peak_bytes", "reserved_peak_bytes", "alloc_retries", "ooms",
    "allocations", "run_s", "startup_s", "wall_s", "round", "group", "size", "limit_gb", "core",
)  # fmt: skip
# Beside kind, workload and allocator, what tells one row of a kind from another.
PARTS: dict[str, tuple[str, ...]] = {
    "peaks": (),
    "times": ("round",),
    "losses": ("round",),
    "capacity": ("limit_gb",),
    "no_margin": ("margin_percent",),
    "script": ("command", "round"),
}
Key = tuple[Any, ...]


class ResultsError(Exception):
    """A results file that cannot be used; three lines: what, why, what to do."""


@dataclass
class Results:
    """The content of a results file, or of several that were merged."""

    sessions: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the object that a file holds."""
        return {"format": FORMAT, "sessions": self.sessions, "rows": self.rows}

    def environment(self, row: Row) -> dict[str, Any]:
        """Return the environment that a row was measured in."""
        return dict(self.sessions[row["session"]]["environment"])

    def done(self) -> set[Key]:
        """Return the keys of all rows, of failed ones too."""
        return {key(row) for row in self.rows}


def key(row: Row) -> Key:
    """Return what a row is the measurement of; two rows of one key are repeats."""
    kind = row["kind"]
    parts = (row.get(name) for name in PARTS.get(kind, ("round",)))
    return (kind, row.get("workload"), row["allocator"], *map(_hashable, parts))


def _hashable(part: Any) -> Any:
    return tuple(part) if isinstance(part, list) else part


def load(path: Path) -> Results:
    """Read a results file. Raises ResultsError."""
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise _unusable(path, error.strerror or str(error), "Name a results file.") from None
    except ValueError as error:
        raise _unusable(path, f"It is no JSON: {error}.", "Name a results file.") from None
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        what = f"Its format is {version!r}, and this version reads format {FORMAT}."
        raise _unusable(path, what, "Measure again, or use the version that wrote it.")
    results = Results(content.get("sessions") or [], content.get("rows") or [])
    if not isinstance(results.sessions, list) or not isinstance(results.rows, list):
        raise _unusable(path, "Its sessions and rows are no lists.", "Measure again.")
    for session in results.sessions:
        if not isinstance(session, dict) or not isinstance(session.get("environment"), dict):
            what = f"A session lacks its environment: {str(session)[:80]}"
            raise _unusable(path, what, "Measure again.")
    for row in results.rows:
        if not _is_row(row, len(results.sessions)):
            what = f"A row lacks its kind, workload, allocator or session: {str(row)[:80]}"
            raise _unusable(path, what, "Measure again.")
        if (name := _no_figure(row)) is not None:
            what = f"A row's {name} is no figure: {str(row[name])[:80]}"
            raise _unusable(path, what, "Measure again.")
    return results


def _is_row(row: Any, sessions: int) -> bool:
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), str) for name in ("kind", "workload", "allocator"))
        and isinstance(row.get("session"), int)
        and 0 <= row["session"] < sessions
    )


def _no_figure(row: Row) -> str | None:
    """Return the name of what should be a figure, or a list or group of them, and is not."""
    for name in FIGURES:
        if not isinstance(row.get(name), int | float | None):
            return name
    for name in ("step_ms", "losses"):
        kind = str if name == "losses" else int | float
        listed = row.get(name) or []
        if not isinstance(listed, list) or not all(isinstance(each, kind) for each in listed):
            return name
    groups = ("card", "driver", "counters")
    return next(
        (name for name in groups if not isinstance(row.get(name), dict | bool | None)), None
    )


def _unusable(path: Path, why: str, action: str) -> ResultsError:
    return ResultsError(f"{path} cannot be used as results.\n{why}\n{action}")


def check_writable(path: Path) -> None:
    """Raise ResultsError where no file can be written; a folder that is missing is made."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> ResultsError:
    """Return the error of a file that could not be written."""
    why = error.strerror or str(error)
    return ResultsError(f"{path} cannot be written.\n{why}.\nName a file in another folder.")


def merge(several: Sequence[Results]) -> Results:
    """Return all rows as one file's, sessions and groups numbered anew."""
    merged = Results()
    for results in several:
        first_session, first_group = len(merged.sessions), next_group(merged.rows)
        merged.sessions += results.sessions
        for row in results.rows:
            moved = row | {"session": row["session"] + first_session}
            if row.get("group") is not None:
                moved["group"] = row["group"] + first_group
            merged.rows.append(moved)
    return merged


def load_all(paths: Iterable[Path]) -> Results:
    """Read and merge files. Raises ResultsError."""
    return merge([load(path) for path in paths])


def rows_on(results: Results, gpu: str | None) -> list[Row]:
    """Return the rows that were measured on this kind of card."""
    return [row for row in results.rows if results.environment(row).get("gpu") == gpu]


def next_group(rows: Iterable[Row]) -> int:
    """Return a number that no row has as its group."""
    return 1 + max((row["group"] for row in rows if row.get("group") is not None), default=-1)


class Store:
    """One session's results file while it grows."""

    def __init__(self, path: Path, command: str, environment: dict[str, Any]) -> None:
        """Begin a session; a file that is there keeps its rows. Raises ResultsError."""
        check_writable(path)
        self.path = path
        self.results = load(path) if path.exists() else Results()
        self.session = len(self.results.sessions)
        now = datetime.datetime.now(datetime.timezone.utc)
        self.results.sessions.append(
            {
                "date": f"{now:%Y-%m-%d %H:%M} UTC",
                "command": command,
                "environment": environment,
            }
        )

    def add(self, *rows: Row) -> None:
        """Keep rows that belong together, and write the file."""
        self.results.rows += [row | {"session": self.session} for row in rows]
        self.save()

    def drop(self, rows: Sequence[Row]) -> None:
        """Take rows out, for which better ones come right after; the file is not written."""
        self.results.rows = [row for row in self.results.rows if row not in rows]

    def mine(self) -> list[Row]:
        """Return this session's rows."""
        return [row for row in self.results.rows if row["session"] == self.session]

    def save(self) -> None:
        """Write everything to a new file, then put that in the old one's place.

        Raises ResultsError where that fails; the old file is whole then.
        """
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with beside.open("w") as file:
                file.write(dumps(self.results))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from None
        finally:
            beside.unlink(missing_ok=True)


def dumps(results: Results) -> str:
    """Return a file's text: a line for each session and each row, so that a diff can be read."""
    sessions = ",\n  ".join(json.dumps(session) for session in results.sessions)
    rows = ",\n  ".join(json.dumps(row) for row in results.rows)
    lists = f' "sessions": [\n  {sessions}\n ],\n "rows": [\n  {rows}\n ]'
    return f'{{\n "format": {FORMAT},\n{lists}\n}}\n'
