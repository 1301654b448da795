"""The no-sharing mode: parts of a program that have it, what it found, and reports of faults.

    gpumem_alloc.enable(isolation="strict")      # the whole program, or
    with gpumem_alloc.isolated("tensor"):        # a part of it
        ...
    assert not gpumem_alloc.isolation.check()

Importing it needs no torch and starts nothing. docs/fault-reports.md says how to read a fault.
"""

from gpumem_alloc.isolation.findings import IsolationReport, Violation, check, report, violations
from gpumem_alloc.isolation.ledger import ledger
from gpumem_alloc.isolation.ledger_file import LedgerError, read_ledger, save_ledger
from gpumem_alloc.isolation.region import isolated
from gpumem_alloc.isolation.stacks import record_stacks

__all__ = [
    "IsolationReport",
    "LedgerError",
    "Violation",
    "check",
    "isolated",
    "ledger",
    "read_ledger",
    "record_stacks",
    "report",
    "save_ledger",
    "violations",
]
