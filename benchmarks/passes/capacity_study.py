"""What to try next for one workload under one limit, for several allocators; no process, no clock.

The first allocator begins with what the live bytes of small sizes let expect. The others begin with
the two sizes between which the best of those before them ends: capacities are then compared at the
same sizes, and two tries say that two are equal. Under a further limit each begins where what it
reached under an earlier one lets expect its end: by how much of the room was live, or how much less
than the best one it held.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from ..workers.job import Job, Row
from ..workloads import Sized
from .bisection import MOST_TRIES, RESOLUTION, Try, bracket, is_complete, next_size, size_for

BASE_BYTES = 640 << 20  # a context and its libraries, roughly: only a first guess depends on it
USUAL_FILL = 0.98  # of the room, live in the end: ours, where nothing is known yet
FIRST_TRIES = 3  # more for the first allocator, which finds out how live bytes grow with the size


@dataclass
class Study:
    """One workload under one limit: what was tried, and what comes next."""

    workload: str
    sized: Sized
    allocators: Sequence[str]
    limit_gb: int | None  # None: the whole card, without a ballast
    card_bytes: int | None = None  # where it is known, the first guess for the whole card is good
    most_tries: int = MOST_TRIES
    tries: dict[str, list[Try]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    live_bytes: dict[int, int] = field(default_factory=dict)  # by size, of any allocator and limit
    others: list[Row] = field(default_factory=list)  # searches under other limits that were over

    @property
    def limit_bytes(self) -> int | None:
        """What the ballast leaves; None without one."""
        return None if self.limit_gb is None else self.limit_gb << 30

    def learn(self, rows: Iterable[Row]) -> None:
        """Use earlier capacity rows: live bytes from all, tries from those of the same limit.

        A search that was over is not begun again; one that was broken off goes on.
        """
        for row in rows:
            if row.get("kind") != "capacity" or row["workload"] != self.workload:
                continue
            tries = [Try(**each) for each in row["tries"]]
            self._see(tries)
            if row["limit_gb"] == self.limit_gb and "error" not in row:
                self.tries[row["allocator"]] = tries
            elif row["limit_gb"] and row.get("complete") and row.get("size"):
                self.others.append(row)

    def add(self, allocator: str, made: Try) -> None:
        """Note a try."""
        self.tries.setdefault(allocator, []).append(made)
        self._see([made])

    def _see(self, tries: Iterable[Try]) -> None:
        self.live_bytes |= {
            each.size: each.live_peak_bytes for each in tries if each.fits and each.live_peak_bytes
        }

    def next(self) -> tuple[str, int] | None:
        """Return the allocator and size to try next; None at the end."""
        for allocator in self.allocators:
            if allocator not in self.errors and (size := self._next_size(allocator)) is not None:
                return allocator, size
        return None

    def is_over(self, allocator: str) -> bool:
        """Whether nothing more will be tried for an allocator."""
        return allocator in self.errors or self._next_size(allocator) is None

    def _next_size(self, allocator: str) -> int | None:
        tries = self.tries.get(allocator, [])
        smallest = self.sized.smallest
        hints = self._hints(allocator)
        expected = self._expected(allocator)
        if not hints and expected is not None and len(self.live_bytes) >= 3:
            hints = _around(max(smallest, expected))  # without trying small sizes first
        most_tries = self.most_tries + (0 if hints else FIRST_TRIES)
        return next_size(
            tries, smallest=smallest, hints=hints, expected=expected, most_tries=most_tries
        )

    def _expected(self, allocator: str) -> int | None:
        """Return the size at which the room is as full of live bytes as it was before."""
        room_bytes = self.limit_bytes or self.card_bytes
        if room_bytes is None:
            return None
        fill = USUAL_FILL
        if (row := self._nearest(allocator)) is not None and row.get("live_peak_bytes"):
            fill = row["live_peak_bytes"] / ((row["limit_gb"] << 30) - BASE_BYTES)
        return size_for(self.live_bytes.items(), round(fill * (room_bytes - BASE_BYTES)))

    def _hints(self, allocator: str) -> tuple[int, ...]:
        """Return where to begin: by the best of the others whose searches are over."""
        found = {name: bracket(tries) for name, tries in self.tries.items() if name != allocator}
        best = max(found, key=lambda name: found[name][0] or 0, default=None)
        if best is None:
            return ()
        low, high = found[best]
        mine, its = self._nearest(allocator), self._nearest(best)
        if low and mine and its and mine["limit_gb"] == its["limit_gb"]:
            size = round(low * mine["size"] / its["size"])
            if abs(size - low) > RESOLUTION * low:
                return _around(max(self.sized.smallest, size))
        return tuple(size for size in (low, high) if size is not None)

    def _nearest(self, allocator: str) -> Row | None:
        """Return what an allocator reached under the nearest of the other limits."""
        room_gb = (self.limit_bytes or self.card_bytes or 0) / (1 << 30)
        mine = [row for row in self.others if row["allocator"] == allocator]
        return min(mine, key=lambda row: abs(row["limit_gb"] - room_gb), default=None)

    def after_next(self) -> list[Job]:
        """Return the jobs that may follow the next one, whichever way that ends."""
        following = []
        if (now := self.next()) is not None:
            for fits in (True, False):
                later = copy.deepcopy(self)
                later.add(now[0], Try(now[1], fits))
                following += [later.job(*then) for then in [later.next()] if then is not None]
        return following

    def job(self, allocator: str, size: int) -> Job:
        """Return the job of one try."""
        return Job(self.workload, allocator, size=size, card=False)

    def row(self, allocator: str) -> Row:
        """Return what is known of one allocator; `complete` says whether no more is to be found."""
        tries = self.tries.get(allocator, [])
        low, high = bracket(tries)
        lives = [each.live_peak_bytes for each in tries if each.size == low]
        found: Row = {
            "kind": "capacity",
            "workload": self.workload,
            "allocator": allocator,
            "limit_gb": self.limit_gb,
            "size": low,
            "fails_at": high,
            "unit": self.sized.unit,
            "live_peak_bytes": lives[0] if lives else None,
            "complete": is_complete(tries, self.sized.smallest),
            "tries": [asdict(each) for each in tries],
        }
        return found | ({"error": self.errors[allocator]} if allocator in self.errors else {})


def _around(size: int) -> tuple[int, int]:
    """Return two sizes about another one that are a whole search, if it ends between them."""
    low = size - math.floor(RESOLUTION / 2 * size)
    return low, low + max(1, math.floor(RESOLUTION * low))
