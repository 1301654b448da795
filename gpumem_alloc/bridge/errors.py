"""What goes wrong on the way to a bridge."""

from __future__ import annotations

from gpumem_alloc.errors import AllocatorError


class BridgeError(AllocatorError):
    """There is no bridge for this torch on this machine; `fix` is what to do about it.

    `may_pass` tells what the same machine may do without next time, as a lack of memory.
    """

    def __init__(self, what: str, why: str, fix: str, *, may_pass: bool = False) -> None:
        super().__init__(f"{what}\n{why}\n{fix}", "not_supported")
        self.what, self.why, self.fix, self.may_pass = what, why, fix, may_pass

    @property
    def line(self) -> str:
        """All of it in one line."""
        return " ".join((self.what, self.why, self.fix))
