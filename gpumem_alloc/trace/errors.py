"""The one error of the readers."""

from __future__ import annotations

from pathlib import Path


class TraceError(ValueError):
    """A trace file that cannot be used; its text is one line that names the file and the reason."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {' '.join(str(reason).split())}")
