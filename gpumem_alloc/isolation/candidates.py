"""Which tensors a fault without an address is likely to be about.

This is a guess. Each tensor has the sum of the weights of the rules that hold for it, and the table
shows which these are:

    8      a violation names it
    5/(1+n) it was freed and its pages are unmapped; n others were unmapped after it: a stale
           pointer is used soon after the free more often than late
    2      and a tensor of another stream was allocated or freed within 100 ms of that free: work of
           that stream may have used it (a missing record_stream)
    1      and its level is `tensor`: the free did not wait, so work queued before it may be the one
           that failed
    3/(1+n) it is allocated; n others were allocated after it: new code runs on new tensors
    2      and its bytes are a multiple of `guard_alignment`, or the guard is the lower one: an
           access one element beyond the guarded end leaves the mapping; else it stays in the gap

Tensors of the level `packed` have neither guards nor pages of their own, so that an access past
their end meets other memory: for them only the first rule counts, and 1/(1+n) for new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpumem_alloc.isolation.ledger_file import Entry, LedgerFile
from gpumem_alloc.isolation.places import LIVE, QUARANTINED

_NEAR_NS = 100_000_000
_PACKED, _TENSOR = 2, 3


@dataclass(frozen=True)
class Candidate:
    """A tensor, its weight, and why."""

    entry: Entry
    weight: float
    reasons: list[str]


def candidates(ledger: LedgerFile, count: int = 8) -> list[Candidate]:
    """Return the likeliest tensors, the likeliest first; of equal ones the newest first."""
    named = {
        (one["device"], one["allocation_number"]): str(one["kind"]) for one in ledger.violations
    }
    entries = ledger.entries
    freed = [entry for entry in entries if entry.state != LIVE]
    live = [entry for entry in entries if entry.state == LIVE]
    freed.sort(key=lambda entry: entry.freed_at_ns, reverse=True)
    live.sort(key=lambda entry: entry.allocated_at_ns, reverse=True)
    busy = _Streams(entries)
    made = [_of_freed(entry, newer, busy) for newer, entry in enumerate(freed)]
    made += [_of_live(entry, newer, ledger.options) for newer, entry in enumerate(live)]
    made = [_named(one, named) for one in made]
    made.sort(key=lambda one: (one.weight, _newest_ns(one.entry)), reverse=True)
    return [one for one in made[:count] if one.weight > 0]


def _newest_ns(entry: Entry) -> int:
    return max(entry.allocated_at_ns, entry.freed_at_ns)


def _named(candidate: Candidate, named: dict[tuple[int, int], str]) -> Candidate:
    kind = named.get((candidate.entry.device, candidate.entry.allocation_number))
    if kind is None:
        return candidate
    reasons = [f"a violation names it: {kind}", *candidate.reasons]
    return Candidate(candidate.entry, candidate.weight + 8, reasons)


def _of_freed(entry: Entry, newer: int, busy: _Streams) -> Candidate:
    if entry.state != QUARANTINED or entry.level < _TENSOR:
        return Candidate(entry, 0.0, [])
    weight = 5 / (1 + newer)
    reasons = [f"the {_newest(newer)} free, and unmapped"]
    if busy.other_near(entry):
        weight += 2
        reasons.append("another stream was in use around that free")
    if entry.level == _TENSOR:
        weight += 1
        reasons.append("work that used it may have been queued when it was freed")
    return Candidate(entry, weight, reasons)


def _of_live(entry: Entry, newer: int, options: dict[str, Any]) -> Candidate:
    reasons = [f"the {_newest(newer)} of those allocated"]
    if entry.level < _TENSOR:
        return Candidate(entry, 1 / (1 + newer), reasons)
    weight = 3 / (1 + newer)
    alignment = int(options["guard_alignment"])
    if options["guard"] == "lower":
        weight += 2
        reasons.append("it begins where the lower guard ends, so an underrun faults at once")
    elif entry.requested_bytes % alignment == 0:
        weight += 2
        reasons.append("it ends where the upper guard begins, so an overrun faults at once")
    return Candidate(entry, weight, reasons)


def _newest(newer: int) -> str:
    count = newer + 1
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(count % 10 if count % 100 // 10 != 1 else 0, "th")
    return "newest" if newer == 0 else f"{count}{suffix} newest"


class _Streams:
    """When the ledger's streams were in use, as far as allocations and frees tell."""

    def __init__(self, entries: list[Entry]) -> None:
        times: dict[tuple[int, int], list[int]] = {}
        for entry in entries:
            used = times.setdefault((entry.device, entry.stream), [])
            used += [entry.allocated_at_ns, entry.freed_at_ns or entry.allocated_at_ns]
        self._times = {key: np.sort(np.array(used, np.int64)) for key, used in times.items()}

    def other_near(self, entry: Entry) -> bool:
        """Return whether another stream of its device was in use around the free."""
        for (device, stream), times in self._times.items():
            if device != entry.device or stream == entry.stream:
                continue
            first = int(np.searchsorted(times, entry.freed_at_ns - _NEAR_NS))
            if first < len(times) and int(times[first]) <= entry.freed_at_ns + _NEAR_NS:
                return True
        return False
