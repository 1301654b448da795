"""Which door into torch is asked for."""

from __future__ import annotations

import os

from gpumem_alloc.errors import OptionError

ENVIRONMENT = "GPUMEM_ALLOC_DOOR"
DOORS = ("auto", "bridge", "stock")


def wanted_door(door: str | None) -> str:
    """Return what is asked for, by argument, else by environment. Raises OptionError."""
    given = door if door is not None else os.environ.get(ENVIRONMENT, "") or "auto"
    if given not in DOORS:
        where = "enable()" if door is not None else ENVIRONMENT
        raise OptionError(
            f"door: {given!r} in {where} is not a way into torch.\n"
            "There are the bridge and the stock door.\n"
            f"Give one of {', '.join(DOORS)}."
        )
    return given
