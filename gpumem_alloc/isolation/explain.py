"""Puts a ledger and the addresses of a fault together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.isolation.candidates import Candidate, candidates
from gpumem_alloc.isolation.fault_text import FaultAddress, FaultText
from gpumem_alloc.isolation.findings import Violation
from gpumem_alloc.isolation.ledger import STATES
from gpumem_alloc.isolation.ledger_file import Entry, LedgerFile
from gpumem_alloc.isolation.places import LIVE, Place, distance_of, nearest, place_of
from gpumem_alloc.isolation.stacks import Frame

_NULL_BYTES = 1 << 20  # an address below this is an offset from a null pointer
_MOST_ADDRESSES = 16


@dataclass(frozen=True)
class Explained:
    """An address of a fault, and what it is."""

    fault: FaultAddress
    place: Place
    sentence: str
    nearest: list[tuple[Entry, str, int]]  # with the side it is on, and the bytes to there


@dataclass(frozen=True)
class Explanation:
    """All that can be said of a fault."""

    ledger: LedgerFile
    faults: list[Explained]
    candidates: list[Candidate]  # where no address points at a tensor
    notes: list[str]


def explain(ledger: LedgerFile, text: FaultText) -> Explanation:
    """Say what the addresses of a fault are; without any, which tensors are likely (a guess)."""
    faults = [explain_address(ledger, fault) for fault in text.addresses[:_MOST_ADDRESSES]]
    is_known = any(one.place.entry is not None for one in faults)
    return Explanation(
        ledger, faults, [] if is_known else candidates(ledger), _notes(ledger, text, faults)
    )


def explain_address(ledger: LedgerFile, fault: FaultAddress) -> Explained:
    """Say what one address is."""
    where, span = fault.address, fault.span_bytes
    place = place_of(where, span, ledger.entries, ledger.options)
    near = [
        (entry, *distance_of(entry, where, span)) for entry in nearest(where, span, ledger.entries)
    ]
    return Explained(fault, place, _sentence(fault, place), near)


def name_of(entry: Entry) -> str:
    """Return what a tensor is called in reports."""
    return f"tensor {entry.device}:{entry.allocation_number}"


def _sentence(fault: FaultAddress, place: Place) -> str:
    entry = place.entry
    if entry is None:
        if fault.address < _NULL_BYTES:
            return "close to 0: a null pointer, or an index from one."
        return (
            "within the addresses of no tensor of the ledger: a pointer that was never one, memory "
            "of another allocator or of tensors outside the mode, or a tensor freed so long ago "
            "that it is forgotten."
        )
    name = f"{name_of(entry)} of {entry.requested_bytes:,} bytes"
    state = {"live": "allocated", "waiting": "freed", "quarantined": "freed and unmapped"}
    what = state[STATES[entry.state]]
    distance = f"{place.least_distance:,}"
    if place.most_distance != place.least_distance:
        distance += f" to {place.most_distance:,}"
    where = {
        "inside": f"{distance} bytes into {name}, which is {what}",
        "behind": f"{distance} bytes behind the end of {name}, which is {what}",
        "before": f"{distance} bytes in front of {name}, which is {what}",
    }[place.relation]
    return f"{where}{_ground(place)}: {_meaning(fault, place, entry)}."


def _ground(place: Place) -> str:
    if place.relation == "inside":
        return ""
    if place.in_guard:
        return ", in its upper guard" if place.relation == "behind" else ", in its lower guard"
    return ", in the memory beside it that nobody may use"


def _meaning(fault: FaultAddress, place: Place, entry: Entry) -> str:
    if fault.is_misaligned:
        return "the access was misaligned, so its bounds may be right"
    if place.relation == "inside":
        if entry.state == LIVE:
            return (
                "its own kernels may use it, so another device or a wrong alignment is the reason, "
                "or it was allocated after the fault"
            )
        return "a use after free"
    beyond = "an overrun" if place.relation == "behind" else "an underrun"
    return beyond if entry.state == LIVE else f"{beyond} through a pointer that outlived the tensor"


def _notes(ledger: LedgerFile, text: FaultText, faults: list[Explained]) -> list[str]:
    notes = [f"The log names: {error}." for error in text.errors]
    notes += [f"The kernel that failed: {kernel}." for kernel in dict.fromkeys(text.kernels)]
    left_out = len(text.addresses) - len(faults)
    if left_out > 0:
        notes.append(f"{left_out} more addresses were left out.")
    if any(one.fault.span_bytes > 1 for one in faults):
        notes.append("Of an address in the kernel log only the page is known.")
    others = {one.fault.pid for one in faults} - {0, ledger.pid}
    if others:
        notes.append(
            f"The kernel log names process {', '.join(map(str, sorted(others)))}, the ledger "
            f"{ledger.pid}: another process, unless one of them counts inside a container."
        )
    alignment = int(ledger.options["guard_alignment"])
    is_misaligned = any("isaligned" in error for error in [*text.errors, ledger.error or ""])
    if (is_misaligned or any(one.fault.is_misaligned for one in faults)) and alignment < 512:
        notes.append(
            f"guard_alignment:{alignment} lets tensors begin where PyTorch's own never do (it "
            "keeps 512 bytes), which some kernels do not support."
        )
    if not faults:
        notes.append(
            "No address is known, so what follows is a guess. compute-sanitizer, cuda-gdb and the "
            "kernel log (Xid 31) have addresses; give what they print with --log."
        )
    notes += [
        f"Device {device}: {shortcoming}"
        for device, shortcoming in ledger.shortcomings.items()
        if shortcoming
    ]
    return notes


def frames_of(ledger: LedgerFile, entry: Entry) -> dict[str, list[Frame]]:
    """Return the stacks of a tensor, {} where none were recorded."""
    return ledger.stacks.get((entry.device, entry.allocation_number), {})


def place_in_source(frames: Iterable[Frame]) -> str:
    """Return the innermost line outside PyTorch of a stack; empty if there is none."""
    for frame in frames:
        if "/torch/" not in frame.file and not frame.file.startswith("<"):
            return str(frame)
    return ""


def made_lines(ledger: LedgerFile, violation: Violation) -> list[str]:
    """Return where the tensor of a violation was allocated, as a line; none without stacks."""
    frames = ledger.stacks.get((violation.device, violation.allocation_number), {})
    made = place_in_source(frames.get("allocated", []))
    return [f"It was made at {made}."] if made else []


def guess_lines(ledger: LedgerFile, count: int = 3) -> list[str]:
    """Return the likeliest tensors, a line each, for a report on stderr."""
    lines = []
    for one in candidates(ledger, count):
        entry = one.entry
        made = place_in_source(frames_of(ledger, entry).get("allocated", []))
        lines.append(
            f"  {name_of(entry)}, {entry.requested_bytes:,} bytes at {entry.address:#x}: "
            f"{one.reasons[0]}{f'; made at {made}' if made else ''}"
        )
    return ["No address is known. Likely tensors, by guess:", *lines] if lines else []


def to_json(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as what json.dumps() takes; docs/fault-reports.md has its form."""
    ledger = explanation.ledger

    def tensor(entry: Entry) -> dict[str, Any]:
        frames = frames_of(ledger, entry)
        return {
            **asdict(entry),
            "state": STATES[entry.state],
            "level": _C.isolation_levels()[entry.level],
            "stacks": {moment: [str(one) for one in each] for moment, each in frames.items()},
        }

    return {
        "ledger": str(ledger.path),
        "pid": ledger.pid,
        "isolation": ledger.isolation,
        "error": ledger.error,
        "tensors": len(ledger.entries),
        "violations": ledger.violations,
        "faults": [
            {
                **asdict(one.fault),
                "relation": one.place.relation,
                "in_guard": one.place.in_guard,
                "least_distance": one.place.least_distance,
                "most_distance": one.place.most_distance,
                "tensor": None if one.place.entry is None else tensor(one.place.entry),
                "earlier": [tensor(entry) for entry in one.place.earlier],
                "sentence": one.sentence,
                "nearest": [
                    {**tensor(entry), "relation": side, "distance": away}
                    for entry, side, away in one.nearest
                ],
            }
            for one in explanation.faults
        ],
        "candidates": [
            {**tensor(one.entry), "weight": one.weight, "reasons": one.reasons}
            for one in explanation.candidates
        ],
        "notes": explanation.notes,
    }
