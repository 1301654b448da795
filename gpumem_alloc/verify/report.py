"""What verify_isolation() returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

KEYS = ("name", "attack", "native", "ours", "held", "why")


@dataclass(frozen=True)
class Check:
    """One promise and what became of the attack on it."""

    name: str
    promise: str
    attack: str
    native: str  # what happened under PyTorch's own allocator, or under its model; "" if not run
    ours: str
    held: bool | None  # None: this level does not promise it, or it was not run
    why: str  # of None, or of a failure; "" if it was held


@dataclass(frozen=True)
class Report:
    """The checks of one level on one device."""

    mode: str
    device: str
    checks: list[Check]

    @property
    def failures(self) -> list[Check]:
        """The promises that were not kept."""
        return [check for check in self.checks if check.held is False]

    @property
    def exit_code(self) -> int:
        """1 if a promise was not kept."""
        return 1 if self.failures else 0

    def to_dict(self) -> dict[str, Any]:
        """Return what --json prints."""
        checks = [{key: getattr(check, key) for key in KEYS} for check in self.checks]
        return {"mode": self.mode, "device": self.device, "checks": checks}

    def __str__(self) -> str:
        held = sum(check.held is True for check in self.checks)
        names = ", ".join(check.name for check in self.failures)
        failed = f"; not held: {names}" if names else ""
        return f"isolation:{self.mode} on {self.device}: {held} promises held{failed}"
