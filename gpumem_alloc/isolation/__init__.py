"""The no-sharing mode: parts of a program that have it, what it found, and reports of faults.

    gpumem_alloc.enable(isolation="strict")      # the whole program, or
    with gpumem_alloc.isolated("tensor"):        # a part of it
        ...
    assert not gpumem_alloc.isolation.check()

Importing it needs no torch and starts nothing. docs/fault-reports.md says how to read a fault.
"""

from gpumem_alloc.isolation.findings import IsolationReport, Violation, check, report, violations
from gpumem_alloc.isolation.ledger import ledger
from gpumem_alloc.isolation.region import isolated

__all__ = [
    "IsolationReport",
    "Violation",
    "check",
    "isolated",
    "ledger",
    "report",
    "violations",
]
