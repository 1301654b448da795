"""Attacks on the promises of the no-sharing mode; see docs/verify-isolation.md."""

from gpumem_alloc.verify.report import Check, Report
from gpumem_alloc.verify.run import verify_isolation

__all__ = ["Check", "Report", "verify_isolation"]
