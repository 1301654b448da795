"""What the no-sharing mode knows of each tensor, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpumem_alloc import _C
from gpumem_alloc.errors import translated
from gpumem_alloc.sizes import existing_device

if TYPE_CHECKING:
    import numpy as np

STATES = ("live", "waiting", "quarantined")
LARGEST_STATE = len(STATES) - 1

# csrc/bindings_isolation.cpp writes it; a test compares both.
_FIELDS = [
    ("address", "<u8"),
    ("requested_bytes", "<u8"),
    ("window_begin", "<u8"),
    ("window_end", "<u8"),
    ("stream", "<u8"),
    ("allocation_number", "<u8"),
    ("free_number", "<u8"),
    ("allocated_at_ns", "<u8"),
    ("freed_at_ns", "<u8"),
    ("state", "<u4"),
    ("level", "<u4"),
]
COLUMNS = [name for name, _ in _FIELDS]


def ledger(device: Any = None) -> np.ndarray[Any, Any]:
    """Return a row for each tensor of a level from `packed` on, in the order of allocation.

    The columns: `address`; `requested_bytes`; `window_begin` and `window_end`, the addresses that
    nobody else gets meanwhile, guards included; `stream`; `allocation_number`; `free_number`, 0
    while it is allocated; `allocated_at_ns` and `freed_at_ns` (CLOCK_REALTIME); `state`, an index
    into STATES; `level`, one into `gpumem_alloc._C.isolation_levels()`. Of freed tensors the newest
    262144 are kept, each until its addresses are used again. `device` is the current one by
    default. Raises AllocatorError in a forked child, or if the device does not exist.
    """
    import numpy as np

    with translated():
        rows = _C.ledger_rows(existing_device(device))
    return np.frombuffer(rows, np.dtype(_FIELDS))
