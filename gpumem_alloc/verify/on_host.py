"""Attacks on the driver on the CPU, in a child process."""

from __future__ import annotations

from collections.abc import Mapping

from gpumem_alloc.verify.attacks import ATTACKS, LIMITED
from gpumem_alloc.verify.machines import HostMachine, Side
from gpumem_alloc.verify.outcome import Outcome


def run(name: str, side: Side, options: Mapping[str, object]) -> Outcome:
    """Make one attack on one side."""
    return ATTACKS[name](HostMachine(side, options, limited=name in LIMITED))
