"""What the source documents claim, and what the card says."""

from __future__ import annotations

from .summary import Summary


def render(summary: Summary, source: str) -> str:
    """Return the table of claims; empty where none was measured."""
    return ""
