"""All that the known bugs ask of the allocator: a level put in force, and what it found."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from tests.gpu.known_bugs.table import GUARDED, Level


def enable(level: Level, options: Mapping[str, object]) -> None:
    """Put a level in force in this process; `options` are for the levels with guards."""
    if level == "native":
        return
    import gpumem_alloc

    settings: dict[str, object] = {"isolation": level}
    if level in GUARDED:
        settings |= options
    gpumem_alloc.enable(**settings)  # type: ignore[arg-type]


def findings(level: Level) -> list[str]:
    """Check all memory now, and return what was found since the start, one text each."""
    if level == "native":
        return []
    import gpumem_alloc

    isolation: Any = importlib.import_module("gpumem_alloc.isolation")
    isolation.check()
    told = [f"{call}: {message}" for call, message in gpumem_alloc.errors()]
    return [str(violation) for violation in isolation.violations()] + told
