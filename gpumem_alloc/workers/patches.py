"""Replaces attributes and entries of tables, and puts back what was there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING: Any = object()


class Patches:
    """What was replaced, last first; undo() leaves alone what somebody replaced after us."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class; `value` may be a classmethod."""
        old = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name) is not value:
                return
            if old is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

        self._undo.append(undo)

    def entry(self, table: dict[Any, Any], key: Any, value: Any) -> None:
        """Set an entry of a dict."""
        old = table.get(key, _MISSING)
        table[key] = value

        def undo() -> None:
            if table.get(key) is not value:
                return
            if old is _MISSING:
                del table[key]
            else:
                table[key] = old

        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()
