"""Says whose times are taken one after the other, why, and what would help.

Else a reader learns it from a mark in the table, after minutes of the card's time.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from ..store import Row
from .lockstep import Group, need_bytes
from .plan import Task, is_tool
from .room import Room

GIB = 1 << 30


def before(
    planned: Sequence[Task], tried: Callable[[str], Container[str]], room: Room
) -> str | None:
    """Return what is to be said before the run; `tried` are allocators with a row of peaks."""
    times = [task for task in planned if task.kind == "times" and len(task.allocators) > 1]
    will_be = {(task.workload, *task.allocators) for task in planned if task.kind == "peaks"}
    unknown = {
        task.workload
        for task in times
        for name in task.allocators
        if name not in tried(task.workload) and (task.workload, name) not in will_be
    }
    if times and room.free_bytes is None:
        found = dict.fromkeys(task.workload for task in times)
        why = "nothing says how much of the card is free"
        remedy = "python -m pip install nvidia-ml-py"
    elif unknown:
        found = dict.fromkeys(task.workload for task in times if task.workload in unknown)
        why = "no row of peaks, made on such a card in as many steps, says what each run takes"
        remedy = "add peaks to --passes, or give --known FILE with such rows"
    else:
        return None
    return (
        f"times of {', '.join(found)}: one allocator after the other, marked ° in tables:\n"
        f"  {why}\n"
        f"  to have them in lockstep: {remedy}"
    )


def during(workload: str, group: Group, peaks: dict[str, Row], room: Room) -> str:
    """Return what is to be said of a group that runs in turn."""
    said = f"  {workload}: one after the other: {', '.join(group.members)}"
    others = [name for name in group.members if not is_tool(name)]
    if len(others) < 2:
        return f"{said}; a tool that watches every access is too slow to take turns with"
    if room.free_bytes is None or not peaks.keys() >= set(group.members):
        return said
    needs = sum(need_bytes(peaks[name]) for name in others)
    return f"{said}; together they take {needs / GIB:.1f} GiB, free are {room.free_bytes / GIB:.1f}"
