"""Runs that take turns: all are alive at once, and each step is run by one after the other.

A card's clocks, its heat and what else the machine does change over minutes, and between two steps
hardly at all. So step i of one allocator is compared with step i of another that ran right before
or after it, and the order is reversed at every step. Cores differ too, of virtual machines by half,
so the members' main threads share one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..store import Row
from ..workers.process import Process
from .plan import family, is_tool, natives_of, ours_of
from .room import Room

FEWEST_CORES = 4  # else torch's own threads and the runner have too few beside the shared one
CONTEXT_BYTES = 1 << 30  # what a process holds beyond its allocator, where the card did not say


@dataclass(frozen=True)
class Group:
    """Allocators that are timed against one another."""

    members: tuple[str, ...]
    in_lockstep: bool = True  # else one run after the other


def need_bytes(row: Row) -> int:
    """Return the most that a run takes of the card, by its row of the pass for peaks."""
    known = int(row.get("reserved_peak_bytes") or row.get("live_peak_bytes") or 0)
    card = row.get("card")
    return max(known, card["peak_bytes"]) if card else known + CONTEXT_BYTES


def groups(allocators: Iterable[str], peaks: dict[str, Row], room: Room) -> list[Group]:
    """Choose who is timed with whom, by the rows of the pass for peaks (failed runs left out).

    The members are native, the fastest other one of PyTorch's, and ours. All at once if the card
    holds them; else each of ours with both of PyTorch's, or with the faster; else one by one.
    A tool would keep the others waiting at every step: it and native run one after the other.
    """
    names = [name for name in allocators if name in peaks]
    by_speed = sorted(natives_of(names), key=lambda name: _seconds(peaks[name]))
    others = [name for name in by_speed if name != "native"]
    natives = [name for name in ("native", *others[:1]) if name in by_speed]
    ours = ours_of(names)
    rest = [name for name in names if family(name) == "rmm"] if not ours else []
    measured = [*ours, *rest]

    def fits(*members: str) -> bool:
        return room.holds([need_bytes(peaks[name]) for name in members])

    found, in_turn = _divided(natives, by_speed[:1], measured, fits)
    if tools := [name for name in names if is_tool(name)]:
        in_turn = [*(in_turn or [*natives, *measured][:1]), *tools]
    made = [*map(Group, found), Group(tuple(in_turn), in_lockstep=False)]
    return [group for group in made if len(group.members) > 1]


def _divided(
    natives: list[str], fastest: list[str], measured: list[str], fits: Callable[..., bool]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return those that are in lockstep with one another, and those that run in turn."""
    everyone = [*natives, *measured]
    if fits(*everyone):
        return [tuple(everyone)], []
    if not natives or not measured:
        return [], everyone
    found: list[tuple[str, ...]] = []
    alone = []
    for name in measured:
        pairings = [(*natives, name), (*fastest, name)]
        fitting = next((members for members in pairings if fits(*members)), None)
        if fitting:
            found.append(fitting)
        else:
            alone.append(name)
    return found, [*natives, *alone] if alone else []


def _seconds(row: Row) -> float:
    times = row.get("step_ms") or []
    return float(
        sum(sorted(times)[: max(1, 3 * len(times) // 4)])
    )  # without the slowest, the start's


def take_turns(
    processes: Sequence[Process], seconds: float, told: Callable[[int], None] = lambda _: None
) -> list[Row]:
    """Let processes that are started run in lockstep, and return their rows.

    One that fails is left behind; the others go on. After the first step, which makes torch's own
    threads, the main threads are kept on one core.
    """
    deadline = time.monotonic() + seconds

    def left_s() -> float:
        return max(0.0, deadline - time.monotonic())

    running = [process for process in processes if process.wait_ready(left_s())]
    for process in running:
        process.go()
        process.wait_started(left_s())
    step = 0
    while running:
        order = running[:: -1 if step % 2 else 1]
        ended = [process for process in order if process.turn(left_s()) is None]
        running = [process for process in running if process not in ended]
        if step == 0:
            _share_core(running)
        step += 1
        told(step)
    return [process.finish(left_s()) for process in processes]


def _share_core(processes: Sequence[Process]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < FEWEST_CORES:
        return
    for process in processes:
        process.stay_on(cores[-1])  # the first is the likeliest to serve interrupts
