"""What tools print of a fault: addresses of the device, kernels, errors.

Known forms: compute-sanitizer's memcheck (and cuda-memcheck before it), cuda-gdb on a program or a
core dump, the driver's line in the kernel log (Xid 31), and the text of a CUDA error in PyTorch.
Addresses in any other place, such as of instructions and of host frames, are not taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

# The kernel log has the page of the access; its low bits are cleared.
PAGE_BYTES = 4096
_LONGEST_ENTRY = 600  # characters of a line of the driver

_HEX = r"0x([0-9a-fA-F]{1,16})"
_COUNT = r"(\d[\d,]*)"
_INVALID = re.compile(
    r"Invalid __(?P<space>\w+?)__ (?P<access>read|write|atomic) of size (?P<bytes>\d[\d,]*)"
)
_ADDRESS = re.compile(rf"\b(?:Address|Access (?:to|at)) {_HEX} is (out of bounds|misaligned)")
_NEAREST = re.compile(
    rf"\bis {_COUNT} bytes (after|before) the nearest allocation at {_HEX}"
    rf"(?:\s*=*\s*of size {_COUNT} bytes)?"
)
_KERNEL = re.compile(r"^[=\s]*at (?:0x[0-9a-fA-F]+ in )?(?P<kernel>\S.*?)\s*$")
_GDB_ADDRESS = re.compile(rf"Illegal access to address \(@(\w+)\)\s*{_HEX}")
_GDB_EXCEPTION = re.compile(
    r"CUDA Exception: (?P<name>[A-Z][\w /()-]*)|CUDA_EXCEPTION_(?P<number>\d+)"
)
_GDB_FRAME = re.compile(r"^\s*#0\s+(?:0x[0-9a-fA-F]+ in )?(?P<kernel>\S.*?)\s*$")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<card>[^)]*)\): 31,")
_XID_FAULT = re.compile(r"faulted @ 0x(?P<high>[0-9a-fA-F]{1,8})_(?P<low>[0-9a-fA-F]{8})\b")
_XID_PROCESS = re.compile(r"\bpid='?(?P<pid>\d+)'?")
_XID_ACCESS = re.compile(r"\bACCESS_TYPE_(?:VIRT_|PHYS_)?(?P<access>READ|WRITE|ATOMIC)")
_ERROR = re.compile(
    r"an illegal memory access was encountered|misaligned address|unspecified launch failure"
    r"|device-side assert triggered|an illegal instruction was encountered"
    r"|CUDA_ERROR_ILLEGAL_ADDRESS|CUDA_ERROR_MISALIGNED_ADDRESS|CUDA_ERROR_LAUNCH_FAILED"
    r"|CUDA_ERROR_INVALID_ADDRESS_SPACE|CUDA_ERROR_INVALID_PC|CUDA_ERROR_ASSERT"
    r"|cudaErrorIllegalAddress|cudaErrorMisalignedAddress|cudaErrorLaunchFailure"
)
# Address spaces in which an address is one of device memory.
_DEVICE_SPACES = ("global", "generic")


@dataclass(frozen=True)
class FaultAddress:
    """An address of an access that failed."""

    address: int
    span_bytes: int = 1  # it lies in [address, address + span_bytes): more than 1 for a page
    source: str = ""
    access: str = ""  # "read", "write", "atomic"; empty: not known
    access_bytes: int = 0
    is_misaligned: bool = False
    kernel: str = ""
    pid: int = 0  # of the process that failed, as the host counts; 0: not known
    note: str = ""  # what the source itself says of the address


@dataclass
class FaultText:
    """What was found in one text."""

    addresses: list[FaultAddress] = field(default_factory=list)  # each once, in their order
    errors: list[str] = field(default_factory=list)  # each once, in their order
    kernels: list[str] = field(default_factory=list)  # named beside an error without an address


def parse(text: str) -> FaultText:
    """Return what a log says of faults; nothing is raised, whatever the text is."""
    found = FaultText()
    lines = text.splitlines()
    addresses = [*_sanitizer(lines), *_debugger(lines, found), *_kernel_log(lines)]
    seen: set[tuple[int, int]] = set()
    for one in addresses:
        if (one.address, one.span_bytes) not in seen:
            seen.add((one.address, one.span_bytes))
            found.addresses.append(one)
    found.errors += dict.fromkeys(_ERROR.findall(text))
    return found


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _sanitizer(lines: Iterable[str]) -> list[FaultAddress]:
    """Errors are a header, then lines that belong to it; those of other spaces are left out."""
    found: list[FaultAddress] = []
    header = FaultAddress(0, source="compute-sanitizer")
    is_device, has_address = True, False
    for line in lines:
        if start := _INVALID.search(line):
            is_device, has_address = start["space"] in _DEVICE_SPACES, False
            access_bytes = _number(start["bytes"])
            header = FaultAddress(
                0, source="compute-sanitizer", access=start["access"], access_bytes=access_bytes
            )
        elif header.access and not header.kernel and (kernel := _KERNEL.match(line)):
            header = replace(header, kernel=kernel["kernel"])
        if is_device and (place := _ADDRESS.search(line)):
            has_address = True
            is_misaligned = place[2] == "misaligned"
            found.append(replace(header, address=int(place[1], 16), is_misaligned=is_misaligned))
        if has_address and (nearest := _NEAREST.search(line)):
            size = f" of {nearest[4]} bytes" if nearest[4] else ""
            note = f"it says {nearest[1]} bytes {nearest[2]} the one at 0x{nearest[3]}{size}"
            found[-1] = replace(found[-1], note=note)
            has_address = False
    return found


def _debugger(lines: Iterable[str], found: FaultText) -> list[FaultAddress]:
    addresses: list[FaultAddress] = []
    in_exception, last = False, -1
    for line in lines:
        if exception := _GDB_EXCEPTION.search(line):
            in_exception = True
            if exception["name"]:
                found.errors.append(exception["name"].strip())
        if (place := _GDB_ADDRESS.search(line)) and place[1] in _DEVICE_SPACES:
            in_exception, last = True, len(addresses)
            addresses.append(FaultAddress(int(place[2], 16), source="cuda-gdb"))
        if in_exception and (frame := _GDB_FRAME.match(line)):
            in_exception = False
            if last >= 0:
                addresses[last] = replace(addresses[last], kernel=frame["kernel"])
                last = -1
            else:
                found.kernels.append(frame["kernel"])
    return addresses


def _kernel_log(lines: Iterable[str]) -> list[FaultAddress]:
    """A line of the driver, which some programs break in two or three."""
    found: list[FaultAddress] = []
    joined = " ".join(line.strip() for line in lines)
    starts = [match.start() for match in _XID.finditer(joined)]
    ends = [*starts[1:], len(joined)] if starts else []
    for start, end in zip(starts, ends, strict=True):
        entry = joined[start : min(end, start + _LONGEST_ENTRY)]
        place = _XID_FAULT.search(entry)
        if place is None:
            continue
        address = int(place["high"] + place["low"], 16)
        process, access = _XID_PROCESS.search(entry), _XID_ACCESS.search(entry)
        found.append(
            FaultAddress(
                address,
                span_bytes=1 if address % PAGE_BYTES else PAGE_BYTES,
                source="kernel log (Xid 31)",
                access=access["access"].lower() if access else "",
                pid=int(process["pid"]) if process else 0,
            )
        )
    return found
