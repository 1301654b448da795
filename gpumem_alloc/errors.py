"""What this package raises. Every text says what happened, why, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gpumem_alloc import _C


class AllocatorError(RuntimeError):
    """The allocator or the driver refused; `code` is one of the names in csrc/base/status.h."""

    def __init__(self, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.code = code


class TooLateError(AllocatorError):
    """PyTorch's own allocator has served memory already, so it cannot be replaced."""


class OptionError(ValueError):
    """An unknown option or a value out of range; the text names the nearest valid one."""


def _translated(error: _C.StatusError) -> Exception:
    code, message = error.args
    if code == "out_of_memory" and "torch" in sys.modules:
        return sys.modules["torch"].OutOfMemoryError(message)  # type: ignore[no-any-return]
    return AllocatorError(message, code)


@contextmanager
def translated() -> Iterator[None]:
    """Turn a failed status of the compiled part into this package's errors.

    Raises torch.OutOfMemoryError where torch is loaded, else AllocatorError.
    """
    try:
        yield
    except _C.StatusError as error:
        raise _translated(error) from None
