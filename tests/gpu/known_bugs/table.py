"""How a known bug is declared, and the list of all of them.

A case is a function with a mistake that people make: in its kernel, under `#if WRONG`, or in its
Python, under `if wrong`. Without it the same function does the same work as it should: its twin.

    @case(mistake="...", signal="fault", packed="always")
    def less_or_equal(torch, kernels, wrong): ...

`signal` is what counts as finding it under `strict`: the hardware faults; a changed pattern or a
wrong free is told as a violation; or memory that nobody wrote shows as NaN in the result. For the
other levels any of the three counts. `native` and `stream` are where a mistake stays unseen; a
wrong result is no finding, since the program does not know the right one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from tests.gpu.known_bugs.kernels import Kernels

Level = Literal["native", "stream", "packed", "tensor", "strict"]
Certainty = Literal["always", "sometimes", "never"]
Signal = Literal["fault", "violation", "poison"]

LEVELS: tuple[Level, ...] = ("native", "stream", "packed", "tensor", "strict")
GUARDED: tuple[Level, ...] = ("tensor", "strict")
GROUPS = ("bounds", "shapes", "underruns", "workspaces", "lifetimes", "streams")


@dataclass(frozen=True)
class Result:
    """What a case computed and what is right, both on the CPU; a call that was refused, and why."""

    got: Any = None
    expected: Any = None
    refused: str = ""


Run = Callable[[Any, Kernels, bool], Result]


@dataclass(frozen=True)
class Case:
    """One mistake, and what each level finds of it."""

    run: Run
    mistake: str
    signal: Signal
    found: Mapping[Level, Certainty]
    options: Mapping[str, object]  # of enable(), for the levels with guards
    card_only: (
        bool  # needs torch's kernels, late ones, or much memory: a stand-in only runs through
    )

    @property
    def name(self) -> str:
        """Of its function."""
        return self.run.__name__

    @property
    def group(self) -> str:
        """The file that it stands in."""
        return self.run.__module__.rpartition(".")[2]


_cases: list[Case] = []


def case(
    *,
    mistake: str,
    signal: Signal,
    native: Certainty = "never",
    stream: Certainty = "never",
    packed: Certainty,
    tensor: Certainty = "always",
    options: Mapping[str, object] | None = None,
    card_only: bool = False,
) -> Callable[[Run], Run]:
    """Add a function to the table. `strict` finds every one."""

    def add(run: Run) -> Run:
        found: dict[Level, Certainty] = {
            "native": native,
            "stream": stream,
            "packed": packed,
            "tensor": tensor,
            "strict": "always",
        }
        frozen = MappingProxyType(dict(options or {}))
        _cases.append(Case(run, mistake, signal, MappingProxyType(found), frozen, card_only))
        return run

    return add


def source(group: str) -> str:
    """The kernels of a group, in CUDA C++."""
    text: str = importlib.import_module(f"tests.gpu.known_bugs.{group}").SOURCE
    return text


@cache
def cases() -> dict[str, Case]:
    """All of them by name, group by group."""
    for group in GROUPS:
        importlib.import_module(f"tests.gpu.known_bugs.{group}")
    table = {each.name: each for each in _cases}
    assert len(table) == len(_cases), "two cases of one name"
    return table
