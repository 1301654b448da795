"""What became of an attack, as a child process tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Whether it was stopped, None if that was not to be seen here, and what happened."""

    stopped: bool | None
    text: str


class NotRunError(Exception):
    """The attack cannot be made here; the text says why."""


def stopped(text: str) -> Outcome:
    """Return that the attack did not get what it wanted."""
    return Outcome(True, text)


def through(text: str) -> Outcome:
    """Return that it did."""
    return Outcome(False, text)


def first_line(text: str) -> str:
    """Return what a message of three lines says happened, without who says it and addresses."""
    line = text.strip().partition("\n")[0].partition(" at 0x")[0]
    line = re.sub(r"(an? )?(address )?0x[0-9a-f]+", "an address", line)
    return line.replace("gpumem_alloc: ", "").rstrip(".: ")
