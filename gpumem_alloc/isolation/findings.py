"""What the no-sharing mode found wrong, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.errors import translated
from gpumem_alloc.sizes import existing_device


@dataclass(frozen=True)
class Violation:
    """Bytes that nobody may write and that changed, or a free of what is not allocated.

    Addresses are of the device; times are nanoseconds since 1970 (CLOCK_REALTIME), 0 for never.
    str() of it says in three lines what happened, why, and what to do.
    """

    kind: str  # "overrun", "underrun", "write after free", "double free", "foreign pointer"
    device: int
    address: int  # of the tensor; 0: none is known
    requested_bytes: int
    stream: int  # cudaStream_t that it was allocated on
    level: str  # of its allocation
    allocation_number: int  # of all allocations of the device at levels from `packed` on, from 1
    free_number: int  # 0: it was allocated when this was found
    allocated_at_ns: int
    freed_at_ns: int
    found_at_ns: int
    first_bad: int  # address of the first wrong byte, or what was freed
    bad_bytes: int
    found: bytes  # the first four wrong bytes
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class IsolationReport:
    """The no-sharing mode on one device. Bytes are physical unless they are of addresses."""

    level: str  # of what is allocated outside isolated()
    cached_bytes: int  # for the next tensors
    waiting_bytes: int  # of freed tensors that the device may still use
    quarantined_address_bytes: int  # addresses without memory
    unchecked_count: int  # frees whose surroundings could not be checked
    violation_count: int  # all of them; `violations` has the newest 1000
    violations: list[Violation]  # oldest first
    shortcoming: str  # what the device cannot check; empty: nothing


def violations(device: Any = None) -> list[Violation]:
    """Return what was found wrong so far, oldest first; the newest 1000 of each device.

    `device` None means every device. Redzones and gaps are looked at when their tensor is freed,
    and in check(); a write into them is found then, not when it happens. Waits for nothing. Raises
    AllocatorError in a forked child, or if the device does not exist.
    """
    return [found for index in _devices(device) for found in report(index).violations]


def check(device: Any = None) -> list[Violation]:
    """Look at the redzones and gaps of all live tensors now, and return violations(device).

    `device` None means every device. Waits for the device. Raises AllocatorError while a CUDA graph
    is captured, if the device has failed, in a forked child, or if the device does not exist.
    """
    for index in _devices(device):
        with translated():
            _C.check_isolation(index)
    return violations(device)


def report(device: Any = None) -> IsolationReport:
    """Return what the mode holds and found on a device, by default the current one.

    All is 0 before the first allocation. Raises AllocatorError as violations() does.
    """
    with translated():
        fields = _C.isolation_report(existing_device(device))
    found = [Violation(**violation) for violation in fields.pop("violations")]
    return IsolationReport(violations=found, **fields)


def _devices(device: Any) -> list[int]:
    if device is not None:
        return [existing_device(device)]
    return list(range(_C.device_count())) if _C.is_made() else []
