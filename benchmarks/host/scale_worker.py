"""Measure under one allocator how costs grow with the number of things, and print lines of JSON.

    python -m benchmarks.host.scale_worker --allocator native --library LIBRARY

LIBRARY is scale.cpp, compiled. After each part the row so far is printed; the last one is all.
Its `curves` hold lists of [n, cost] or, where a cost has both, [n, middle, mean]; the mean also has
what is rare and slow, the calls of the driver. What the card has no memory for, or what does not
end in time, is named in `left_out`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from ..allocators import choose, put_in_place

KIB, MIB, GB = 1 << 10, 1 << 20, 10**9
# Sizes of the live blocks, as many in each doubling, and how many there are at most. Each of the
# three is served in its own way by one of the allocators: PyTorch keeps two pools, up to 1 MiB and
# above, and ours has slabs up to 8 KiB.
LIVE: dict[str, tuple[int, int, int]] = {
    "small": (64, 8 * KIB, 1_000_000),
    "large": (1 * MIB + 1, 4 * MIB, 31_623),
    "medium": (12 * KIB, 96 * KIB, 1_000_000),
}
LIVE_COUNTS = (1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
STREAM_COUNTS = (1, 2, 4, 8, 16, 32)  # as many as PyTorch hands out
THREAD_COUNTS = (1, 2, 4, 8, 16)
HELD_GB = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 130.0)
SIZES = {"4K": 4 * KIB, "2M": 2 * MIB}
HELD_BLOCK = 64 * MIB
RING = 4  # blocks of a stream, as in scale.cpp
ROOM = 1.25  # the card must have so much more than what blocks of many sizes ask for
ROOM_OF_EQUALS = 1.02
GROW_SECONDS = 8.0

Point = list[float]


class Refused(Exception):  # noqa: N818 (what happens, not what went wrong)
    """A loop did not do what was asked; the text says why."""


class Scale:
    """The curves of one process, in the order in which they are measured."""

    def __init__(self, torch: Any, library: str, arguments: argparse.Namespace) -> None:
        self.torch = torch
        self.seconds: float = arguments.point_seconds
        self.most = arguments
        self.curves: dict[str, list[Point]] = {}
        self.left_out: list[str] = []
        self._live_count = 0
        self._mean_bytes = 0.0
        self._room = ROOM
        self._loops = ctypes.CDLL(library)
        size, count, seconds = ctypes.c_size_t, ctypes.c_int, ctypes.c_double
        found = ctypes.POINTER(seconds)
        self._loops.error_text.restype = ctypes.c_char_p
        self._loops.live_begin.argtypes = [size, size]
        self._loops.live_grow.argtypes = [size, seconds]
        self._loops.live_shrink.argtypes = [size]
        self._loops.live_pairs.argtypes = [seconds, found]
        self._loops.stream_pairs.argtypes = [size, count, seconds, found]
        self._loops.thread_pairs.argtypes = [size, count, count, seconds, found]

    def measure(self, told: Callable[[], None]) -> None:
        """Measure everything; what leaves the least behind comes first. `told` is called often."""
        for part in (self.held, self.streams, self.threads):
            try:
                part()
            except Refused as refusal:
                self.left_out.append(f"{part.__name__}, the rest: {refusal}")
            told()
        for name, (least, most, highest) in LIVE.items():
            self.live(name, least, most, min(highest, self.most.live))
            told()

    def held(self) -> None:
        """Pairs of a large block, growth by 1 GB and giving it back, with so much memory held."""
        self._begin(HELD_BLOCK, HELD_BLOCK)
        for gb in up_to(HELD_GB, self.most.gb):
            try:
                self._held(gb)
            except Refused as refusal:
                self.left_out.append(f"held {gb:g} GB and more: {refusal}")
                break
        self._shrink(0)
        self._loops.empty_cache()

    def _held(self, gb: float) -> None:
        blocks = max(1, round(gb * GB / HELD_BLOCK))
        kept = max(0, blocks - round(GB / HELD_BLOCK))
        moved_gb = (blocks - kept) * HELD_BLOCK / GB
        self._grow(blocks)
        self._pairs("held pair", gb)
        begin = time.perf_counter()
        self._shrink(kept)
        self._checked(self._loops.empty_cache())
        between = time.perf_counter()
        self._grow(blocks)
        end = time.perf_counter()
        self._note("held trim", gb, 1e3 * (between - begin) / moved_gb)
        self._note("held growth", gb, 1e3 * (end - between) / moved_gb)

    def streams(self) -> None:
        """Pairs of one thread that goes from stream to stream, and what each stream keeps idle."""
        before = self._idle_bytes()
        for count in up_to(STREAM_COUNTS, self.most.streams):
            for name, size_bytes in SIZES.items():
                found = (ctypes.c_double * 2)()
                answer = self._loops.stream_pairs(size_bytes, count, self.seconds, found)
                self._checked(answer)
                self._note(f"streams {name}", count, *found)
            self._note("streams idle", count, (self._idle_bytes() - before) / count / MIB)
        self._loops.streams_end()
        self._loops.empty_cache()

    def threads(self) -> None:
        """Pairs of several threads at once, each on its own stream, and all on one."""
        cores = len(os.sched_getaffinity(0))
        counts = up_to(THREAD_COUNTS, self.most.threads)
        if too_many := [count for count in counts if count > cores]:
            self.left_out.append(f"threads {too_many}: {cores} cores")
        for kind, own in (("own", 1), ("one", 0)):
            for name, size_bytes in SIZES.items():
                for count in counts:
                    if count > cores:
                        continue
                    found = (ctypes.c_double * 2)()
                    self._checked(
                        self._loops.thread_pairs(size_bytes, count, own, self.seconds, found)
                    )
                    self._note(f"threads {name}, {kind} stream", count, found[0])

    def live(self, name: str, least: int, most: int, highest: int) -> None:
        """Pairs that replace any one of so many live blocks."""
        self._begin(least, most)
        for count in up_to(LIVE_COUNTS, highest):
            try:
                self._grow(int(count))
                self._pairs(f"live {name}", count)
            except Refused as refusal:
                self.left_out.append(f"live {name} {count:,.0f} and more: {refusal}")
                break

    def _begin(self, least: int, most: int) -> None:
        """Free the blocks before, and say of which sizes the next ones are."""
        if self._live_count:
            self._shrink(0)
            self._loops.empty_cache()
        self._loops.live_begin(least, most)
        self._live_count = 0
        self._mean_bytes = least if least == most else (most - least) / math.log(most / least)
        self._room = ROOM_OF_EQUALS if least == most else ROOM

    def _grow(self, count: int) -> None:
        """Raise Refused where the card has no room for it, or it takes too long."""
        more_bytes = (count - self._live_count) * self._mean_bytes * self._room
        has_bytes = self.torch.cuda.mem_get_info()[0] + self._idle_bytes()
        if more_bytes > has_bytes:
            raise Refused(f"{more_bytes / GB:.1f} GB more, {has_bytes / GB:.1f} GB free")
        self._live_count = count  # so many at most, should it end early
        self._checked(self._loops.live_grow(count, GROW_SECONDS))

    def _shrink(self, count: int) -> None:
        self._loops.live_shrink(count)
        self._live_count = count

    def _pairs(self, curve: str, count: float) -> None:
        found = (ctypes.c_double * 2)()
        self._checked(self._loops.live_pairs(self.seconds, found))
        self._note(curve, count, *found)

    def _checked(self, answer: int) -> None:
        if answer < 0:
            text = self._loops.error_text().decode(errors="replace")
            raise Refused(text.splitlines()[0] if text else "refused")
        if answer == 0:
            raise Refused("it did not end in time")

    def _note(self, curve: str, count: float, *costs: float) -> None:
        self.curves.setdefault(curve, []).append([count, *(round(cost, 3) for cost in costs)])

    def _idle_bytes(self) -> int:
        """Return what the allocator holds beyond the blocks in use."""
        stats = self.torch.cuda.memory_stats()
        return int(stats["reserved_bytes.all.current"] - stats["allocated_bytes.all.current"])


def up_to(counts: tuple[float, ...], highest: float) -> list[float]:
    """Return the counts up to the highest one, which stands alone if all are above it."""
    return [count for count in counts if count <= highest] or [highest]


def run(arguments: argparse.Namespace, told: Callable[[dict[str, Any]], None]) -> None:
    """Measure in this process, and tell the row: what there is after each part, the last is all."""
    started = time.monotonic()
    choose(arguments.allocator, os.environ)
    import torch

    row: dict[str, Any] = {"allocator": arguments.allocator}
    row["door"] = put_in_place(torch, arguments.allocator)
    torch.zeros(1, device="cuda")
    scale = Scale(torch, arguments.library, arguments)
    row |= {"curves": scale.curves, "left_out": scale.left_out}
    scale.measure(lambda: told(row | {"took_s": round(time.monotonic() - started, 1)}))


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add how far the curves go and how long a point takes; scale.py passes them on."""
    parser.add_argument("--point-seconds", type=float, default=0.12, help="for each point")
    parser.add_argument("--live", type=int, default=max(LIVE_COUNTS), help="blocks at most")
    parser.add_argument("--streams", type=int, default=max(STREAM_COUNTS), help="at most")
    parser.add_argument("--threads", type=int, default=max(THREAD_COUNTS), help="at most")
    parser.add_argument("--gb", type=float, default=max(HELD_GB), help="held, at most")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", required=True)
    parser.add_argument("--library", required=True)
    add_limits(parser)
    run(parser.parse_args(), lambda row: print("ROW " + json.dumps(row), flush=True))


if __name__ == "__main__":
    main()
    os._exit(0)  # gives nothing back piece by piece
