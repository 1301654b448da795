"""What lies at an address of the device: which tensor, or how far from the nearest ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpumem_alloc.isolation.ledger import STATES
from gpumem_alloc.isolation.ledger_file import Entry

LIVE, WAITING, QUARANTINED = range(len(STATES))
_GUARDED_LEVELS = (3, 4)  # tensor, strict


@dataclass(frozen=True)
class Place:
    """Where an address, or a page of which it is some byte, lies.

    `relation` is "inside", "behind" or "before" the tensor `entry`, within the addresses that are
    its own; or "foreign": within those of no tensor. Distances are in bytes and of the whole page:
    behind, from the tensor's end, 0 for the first byte past it; before, from its first byte, 1 for
    the one in front of it; inside, from its first byte.
    """

    relation: str
    entry: Entry | None
    least_distance: int
    most_distance: int
    in_guard: bool  # no memory was ever there
    earlier: list[Entry]  # others that had this address, the newest first


def end_of(entry: Entry) -> int:
    """Return the address behind the tensor's last byte."""
    return entry.address + entry.requested_bytes


def guard_ranges(entry: Entry, options: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the lower and the upper guard of a tensor, as [begin, end); none below `tensor`.

    Both guards are as large. The tensor's block, its bytes rounded up to `guard_alignment`, touches
    the one that the option `guard` names.
    """
    if entry.level not in _GUARDED_LEVELS:
        return []
    if options["guard"] == "lower":
        guard_bytes = entry.address - entry.window_begin
    else:
        alignment = int(options["guard_alignment"])
        block_bytes = -(-max(entry.requested_bytes, 1) // alignment) * alignment
        guard_bytes = entry.window_end - entry.address - block_bytes
    if guard_bytes <= 0:
        return []
    return [
        (entry.window_begin, entry.window_begin + guard_bytes),
        (entry.window_end - guard_bytes, entry.window_end),
    ]


def place_of(
    address: int, span_bytes: int, entries: Iterable[Entry], options: dict[str, Any]
) -> Place:
    """Say what lies at [address, address + span_bytes).

    Of several tensors that have it, one that is allocated goes first, then one whose bytes are
    there, then the newest. A page that touches a tensor is inside it.
    """
    last = address + span_bytes - 1
    owners = sorted(
        (entry for entry in entries if entry.window_begin <= last and address < entry.window_end),
        key=lambda entry: (entry.state == LIVE, _touches(entry, address, last), _newness(entry)),
        reverse=True,
    )
    if not owners:
        return Place("foreign", None, 0, 0, False, [])
    entry, *earlier = owners
    in_guard = any(begin <= address and last < end for begin, end in guard_ranges(entry, options))
    relation, least, most = _relation(entry, address, last)
    return Place(relation, entry, least, most, in_guard, earlier)


def _newness(entry: Entry) -> tuple[bool, int, int]:
    return entry.state == LIVE, entry.free_number, entry.allocation_number


def _touches(entry: Entry, address: int, last: int) -> bool:
    return entry.address <= last and address < end_of(entry)


def _relation(entry: Entry, address: int, last: int) -> tuple[str, int, int]:
    end = end_of(entry)
    if address >= end:
        return "behind", address - end, last - end
    if last < entry.address:
        return "before", entry.address - last, entry.address - address
    first = max(address, entry.address)
    return "inside", first - entry.address, min(last, end - 1) - entry.address


def distance_of(entry: Entry, address: int, span_bytes: int = 1) -> tuple[str, int]:
    """Return on which side of a tensor an address is, and how far, as Place has them."""
    relation, least, _ = _relation(entry, address, address + span_bytes - 1)
    return relation, least


def nearest(address: int, span_bytes: int, entries: Iterable[Entry], count: int = 4) -> list[Entry]:
    """Return the tensors nearest to an address; of those equally near, the newest first."""

    def away(entry: Entry) -> int:
        relation, distance = distance_of(entry, address, span_bytes)
        return {"inside": 0, "before": distance, "behind": distance + 1}[relation]

    return sorted(sorted(entries, key=_newness, reverse=True), key=away)[:count]
