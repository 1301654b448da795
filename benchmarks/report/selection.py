"""Which rows count for a figure, and under which name.

Rows of several sessions are one table where card, driver and torch are the same (a Setting): peaks
do not depend on clocks. Times are compared more narrowly: in one lockstep group, or in one round of
one session.

A workload that has another number of steps or other code since is another one: its older runs do
not count. Ours is another program after every change. Of ours, for each workload and purpose
(peaks, times), only the sessions with the newest version count; PyTorch's and RMM's rows all do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..allocators import ALLOCATORS
from ..store import Results, Row
from ..workloads import MAIN_WORKLOADS, WORKLOADS

SAME = ("gpu", "gpu_bytes", "driver", "torch", "cuda")  # what a Setting's sessions share
OURS = "paged"  # the README's column "ours": the default strategy and preset, through the bridge


@dataclass
class Setting:
    """Sessions whose peaks can be compared."""

    environment: dict[str, Any]  # of the newest session
    sessions: dict[int, dict[str, Any]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def version(self, row: Row) -> str:
        """Return which gpumem_alloc a row was measured with."""
        return self.version_of(row["session"])

    def version_of(self, session: int) -> str:
        """Return which gpumem_alloc a session measured."""
        environment = self.sessions[session]["environment"]
        return f"{environment.get('gpumem_alloc')} ({environment.get('git_id')})"


def settings(results: Results) -> list[Setting]:
    """Sort the rows by setting, the newest first; rows get the names that tables show."""
    found: dict[tuple[Any, ...], Setting] = {}
    newest_last = sorted(enumerate(results.sessions), key=lambda each: str(each[1].get("date")))
    of_session = {}
    for index, session in newest_last:
        key = tuple(session["environment"].get(name) for name in SAME)
        setting = found.pop(key, None) or Setting({})
        found[key] = of_session[index] = setting  # goes to the end: it has the newest so far
        setting.environment = session["environment"]
        setting.sessions[index] = session
    for row in results.rows:
        named = {"workload": workload_name(row), "allocator": allocator_name(row)}
        of_session[row["session"]].rows.append(row | named)
    return [setting for setting in reversed(found.values()) if setting.rows]


def is_ours(allocator: str) -> bool:
    """Say whether an allocator is one of ours."""
    known = ALLOCATORS.get(allocator)
    return known is None or known.family == "ours"


def is_pytorchs(allocator: str) -> bool:
    """Say whether an allocator is PyTorch's own."""
    known = ALLOCATORS.get(allocator)
    return known is not None and known.family == "pytorch"


def allocator_name(row: Row) -> str:
    """Return the table's name: of ours, that of the door that served, where it is the stock one."""
    name = str(row["allocator"])
    if not is_ours(name):
        return name
    made_of, _, asked = name.partition("@")
    door = row.get("door") or asked
    return f"{made_of}@stock" if door == "stock" else made_of


def workload_name(row: Row) -> str:
    """Return the table's name: a workload at a size of its own is another one."""
    command = row.get("command")
    shown = " ".join(map(str, command)) if isinstance(command, list) else command
    name = str(row.get("workload") or shown or "script")
    is_found = row["kind"] in ("capacity", "no_margin")  # their size is what was found
    return name if row.get("size") is None or is_found else f"{name} at {row['size']}"


def newest_of_ours(setting: Setting, rows: Iterable[Row]) -> list[Row]:
    """Leave out rows of ours for which the same was measured with a newer version."""
    rows = list(rows)
    dates = {index: at for at, index in enumerate(setting.sessions)}  # in order of dates
    newest: dict[str, tuple[int, str]] = {}
    for row in rows:
        if is_ours(row["allocator"]):
            candidate = (dates[row["session"]], setting.version(row))
            name = row["allocator"]
            newest[name] = max(newest.get(name, candidate), candidate)
    return [
        row
        for row in rows
        if row["allocator"] not in newest or setting.version(row) == newest[row["allocator"]][1]
    ]


def full_length(rows: list[Row]) -> list[Row]:
    """Keep the rows of the longest runs: the workload's own number of steps, else the largest."""
    asked = [row.get("steps") for row in rows]
    longest = None if None in asked else max(filter(None, asked), default=None)
    return [row for row in rows if row.get("steps") == longest]


def same_work(setting: Setting, rows: list[Row]) -> list[Row]:
    """Leave out runs of a workload that has other steps or other code since: it is another one."""
    order = list(setting.sessions)
    whole = [row for row in rows if row["kind"] in ("peaks", "times") and row.get("step_ms")]
    whole = [row for row in whole if row.get("steps") is None]
    if not whole:
        return rows
    newest = max(order.index(row["session"]) for row in whole)
    now = {_work(row) for row in whole if order.index(row["session"]) == newest}
    left_out = {id(row) for row in whole if _work(row) not in now}
    return [row for row in rows if id(row) not in left_out]


def _work(row: Row) -> tuple[int, str | None]:
    return len(row["step_ms"]), row.get("code_id")


def workload_order(name: str) -> tuple[int, int]:
    """Sort key: the main workloads first, then as they are listed, then the user's own."""
    known = [*MAIN_WORKLOADS, *(each for each in WORKLOADS if each not in MAIN_WORKLOADS)]
    plain = name.partition(" at ")[0]
    return (known.index(plain), 0) if plain in known else (len(known), 0)


def allocator_order(name: str) -> tuple[int, str]:
    """Sort key: as allocators are listed, with spellings of the user's own after their base."""
    known, base = list(ALLOCATORS), re.split("[:@]", name)[0]
    return known.index(base) if base in known else len(known), name
