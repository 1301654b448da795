"""How a behaviour is declared, and the list of all of them.

A behaviour is a function that asserts what any program may see of PyTorch's allocator. It is run
with native and with ours, and must hold with both. Where ours is meant to differ, the function is
followed by what holds for ours instead, with the reason:

    @behaviour()
    def small_blocks_count_as_small() -> None: ...

    @small_blocks_count_as_small.differs("a page holds blocks of every size")
    def _() -> None: ...

Then the behaviour itself must fail with ours and what follows it must hold, so that a difference
that goes away is noticed too.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

Version = tuple[int, int]
Check = Callable[[], None]

_LATE_GROUPS = {"checkpoints", "graphs", "pool_allocators", "pools", "raw", "streams"}
_NOT_GROUPS = {"__main__", "document", "own_allocator", "table", "tools", "worker"}


@dataclass
class Difference:
    """What ours does instead, and why."""

    reason: str
    check: Check


@dataclass
class Behaviour:
    """One row of the table."""

    check: Check
    group: str
    gpu: bool = False  # needs kernels or a driver's real answers; otherwise the stand-in does too
    cards: int = 1  # so many must be there
    since: Version = (2, 11)
    alone: bool = False  # wants a process of its own
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    exit_code: int | None = None  # the process ends in it; nothing is asked of the function
    stderr: str = ""  # how the last line that such a process writes to stderr begins; "": nothing
    difference: Difference | None = None

    def runs_on(self, machine: str) -> bool:
        """Whether the machine, `rig` or `gpu`, can show it."""
        return not (self.gpu and machine == "rig")

    def runs_late(self, machine: str) -> bool:
        """Whether it is also run with ours put in place after the card was used.

        On the stand-in only where that may matter: the rest is what the bridge is anyway.
        """
        return not self.alone and (machine == "gpu" or self.group in _LATE_GROUPS)

    @property
    def name(self) -> str:
        """Group and function."""
        return f"{self.group}.{self.check.__name__}"

    def differs(self, reason: str) -> Callable[[Check], Check]:
        """Declare that ours does what the decorated function asserts, for a reason."""

        def declare(check: Check) -> Check:
            self.difference = Difference(reason, check)
            return check

        return declare


_behaviours: list[Behaviour] = []


def _cards(count: int) -> dict[str, str]:
    return {} if count == 1 else {"RIG_DEVICES": str(count)}


def behaviour(
    *,
    gpu: bool = False,
    cards: int = 1,
    since: Version = (2, 11),
    alone: bool = False,
    env: Mapping[str, str] | None = None,
    exit_code: int | None = None,
    stderr: str = "",
) -> Callable[[Check], Behaviour]:
    """Add a function to the table."""

    def add(check: Check) -> Behaviour:
        row = Behaviour(
            check=check,
            group=check.__module__.rpartition(".")[2],
            gpu=gpu,
            cards=cards,
            since=since,
            alone=alone or exit_code is not None,
            env=MappingProxyType({**_cards(cards), **(env or {})}),
            exit_code=exit_code,
            stderr=stderr,
        )
        _behaviours.append(row)
        return row

    return add


@cache
def behaviours() -> dict[str, Behaviour]:
    """All of them by name, group by group."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    for name in sorted(set(names) - _NOT_GROUPS):
        importlib.import_module(f"tests.behaviour.{name}")
    ordered = sorted(_behaviours, key=lambda row: row.group)  # stable: a file's own order
    table = {row.name: row for row in ordered}
    assert len(table) == len(_behaviours), "two behaviours of one name"
    return table
