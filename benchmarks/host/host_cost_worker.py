"""Measure what memory costs on the host under one allocator, and print one line of JSON.

    python -m benchmarks.host.host_cost_worker --allocator paged@stock --library LIBRARY

LIBRARY is host_cost.cpp, compiled. Costs are nanoseconds. A pair is a free and an allocation, the
best of several tries; single calls are timed one by one, all tries together. A cost that the
allocator cannot have (it refuses the call) is null. Every loop ends with its time.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..allocators import choose, put_in_place

SIZES = {"512": 512, "64K": 64 << 10, "1M": 1 << 20, "4M": 4 << 20, "64M": 64 << 20}
MIXED_BYTES = 0  # as host_cost.cpp takes it
DEPTH = 16
HOLES = 10_000
HOLES_SECONDS = 5.0  # RMM's pool looks through all its free blocks at every free
LOOP_SECONDS = 0.5
THREADS = (1, 2, 4, 8)
SMALL = 4096  # for the threads and the history
TIMED_CALLS = 10  # times as many as pairs: p99.99 must have some calls above it
PERCENTILES = ("p50", "p99", "p99.99")
CONTEXTS = {"none": None, "state": "state", "all": "all"}
HISTORY_ENTRIES = 100_000  # what PyTorch's own text on snapshots asks for

Costs = dict[str, float | None]
_NEVER_FREED: list[Any] = []


class Loops:
    """The compiled loops. Calls let go of Python's lock, except those with `history`."""

    def __init__(self, library: str, pairs: int, tries: int, holes: int) -> None:
        self.pairs = pairs
        self.tries = tries
        self.holes = holes
        self.clock_ns = 0.0
        self._free = ctypes.CDLL(library)
        self._locked = ctypes.PyDLL(library)
        size, count, seconds = ctypes.c_size_t, ctypes.c_int, ctypes.c_double
        for loops in (self._free, self._locked):
            loops.pair_ns.argtypes = [size, count, seconds]
            loops.threads_ns.argtypes = [size, count, count, seconds]
            loops.device_stats_ns.argtypes = [count, seconds]
            loops.latencies_ns.argtypes = [size, count, seconds, ctypes.POINTER(seconds)]
            for each in (loops.pair_ns, loops.threads_ns, loops.device_stats_ns):
                each.restype = ctypes.c_double

    def pair(self, size_bytes: int) -> float | None:
        return self._best(lambda: self._free.pair_ns(size_bytes, self.pairs, LOOP_SECONDS))

    def pair_with_python(self, size_bytes: int) -> float | None:
        """The same, holding Python's lock: a history of Python's frames asks for it."""
        return self._best(lambda: self._locked.pair_ns(size_bytes, self.pairs, LOOP_SECONDS))

    def threads(self, count: int) -> float | None:
        return self._best(
            lambda: self._free.threads_ns(SMALL, self.pairs // 2, count, LOOP_SECONDS)
        )

    def device_stats(self) -> float | None:
        return self._best(lambda: self._free.device_stats_ns(self.pairs, LOOP_SECONDS))

    def latencies(self, size_bytes: int) -> dict[str, Costs]:
        """Return the percentiles of allocations and of frees, what the clock takes taken off."""
        found = (ctypes.c_double * 8)()
        answered = self._free.latencies_ns(
            size_bytes, TIMED_CALLS * self.pairs, 2 * LOOP_SECONDS, found
        )
        self.clock_ns = max(self.clock_ns, round(found[6], 1))
        values = [round(value, 1) if answered else None for value in found[:6]]
        return {
            "allocate": dict(zip(PERCENTILES, values[:3], strict=True)),
            "free": dict(zip(PERCENTILES, values[3:], strict=True)),
        }

    def _best(self, measure: Callable[[], float]) -> float | None:
        """Return the least of several tries; slow ones have one, since they are no noise."""
        best = float("inf")
        for _ in range(self.tries):
            begin = time.monotonic()
            best = min(best, measure())
            if best < 0 or time.monotonic() - begin > LOOP_SECONDS:
                break
        return None if best < 0 else round(best, 1)


def python_pair(torch: Any, size_bytes: int, loops: Loops) -> float:
    """Return what `torch.empty` and the end of a tensor cost, as Python code sees them."""
    ring = [torch.empty(size_bytes, dtype=torch.uint8, device="cuda") for _ in range(DEPTH)]
    empty, dtype, best = torch.empty, torch.uint8, float("inf")
    rounds = max(1, loops.pairs // 4 // DEPTH)
    for _ in range(loops.tries):
        begin = time.perf_counter()
        for _ in range(rounds):
            for at in range(DEPTH):
                ring[at] = None
                ring[at] = empty(size_bytes, dtype=dtype, device="cuda")
        best = min(best, time.perf_counter() - begin)
    return round(1e9 * best / rounds / DEPTH, 1)


def make_holes(torch: Any, count: int, seconds: float = HOLES_SECONDS) -> tuple[list[Any], int]:
    """Return live tensors of many sizes, and how many free places there are between them.

    There are fewer than asked for if the time was over before.
    """
    shapes = random.Random(3)
    made: list[Any] = []
    end = time.monotonic() + seconds
    while len(made) < 2 * count and (len(made) % 100 or time.monotonic() < end):
        size_bytes = shapes.randint(1, 200) * 512 + 1
        made.append(torch.empty(size_bytes, dtype=torch.uint8, device="cuda"))
    holes = 0
    end = time.monotonic() + seconds
    for at in range(0, len(made), 2):
        if at % 100 == 0 and time.monotonic() > end:
            break
        made[at] = None
        holes += 1
    return made, holes


def let_go(kept: list[Any], seconds: float = HOLES_SECONDS) -> None:
    """Free the tensors, as many as the time allows; the others stay until the process ends."""
    end = time.monotonic() + seconds
    while kept and time.monotonic() < end:
        del kept[-100:]
    _NEVER_FREED.extend(kept)


def history_added(torch: Any, loops: Loops) -> Costs:
    """Return what recording adds to one pair, by how much of the call stack it keeps.

    What a pair costs without is asked before and after each: a host is faster at times.
    """
    found: Costs = {}
    offs = [loops.pair_with_python(SMALL)]
    ons: Costs = {}
    for name, context in CONTEXTS.items():
        try:
            torch.cuda.memory._record_memory_history(
                "all", context=context, stacks="python", max_entries=HISTORY_ENTRIES
            )
        except RuntimeError:  # an allocator without a history
            continue
        ons[name] = loops.pair_with_python(SMALL)
        torch.cuda.memory._record_memory_history(None)
        offs.append(loops.pair_with_python(SMALL))
    off = min((each for each in offs if each is not None), default=None)
    for name in CONTEXTS:
        on = ons.get(name)
        found[f"history {name}"] = None if on is None or off is None else round(on - off, 1)
    return found


def latencies(loops: Loops, after: str = "") -> Costs:
    """Return the cost of single calls by size; `after` ends their names."""
    found: Costs = {}
    for size, size_bytes in [*SIZES.items(), ("mixed", MIXED_BYTES)]:
        for call, by_percentile in loops.latencies(size_bytes).items():
            for percentile, ns in by_percentile.items():
                found[f"{call} {size}{after} {percentile}"] = ns
    return found


def measure(torch: Any, loops: Loops) -> tuple[Costs, int]:
    """Measure everything, and say how many holes there were.

    The holes come last but for the history, which slows what follows.
    """
    costs: Costs = {}
    for name, size_bytes in SIZES.items():
        costs[f"pair {name}"] = loops.pair(size_bytes)
    for count in THREADS:
        costs[f"{count} threads"] = loops.threads(count)
    costs["getDeviceStats"] = loops.device_stats()
    for name, size_bytes in SIZES.items():
        costs[f"torch.empty {name}"] = python_pair(torch, size_bytes, loops)
    costs |= latencies(loops)
    kept, holes = make_holes(torch, loops.holes)
    for name, size_bytes in SIZES.items():
        costs[f"pair {name}, holes"] = loops.pair(size_bytes)
    costs |= latencies(loops, ", holes")
    let_go(kept)
    torch.cuda.empty_cache()
    return costs | history_added(torch, loops), holes


def at_least(costs: Iterable[str], holes: int, asked: int) -> list[str]:
    """Name the costs that are bounds: measured with fewer holes than there should be."""
    return [name for name in costs if ", holes" in name and holes < asked]


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure in this process, and return the row."""
    choose(arguments.allocator, os.environ)
    import torch

    row: dict[str, Any] = {"allocator": arguments.allocator}
    row["door"] = put_in_place(torch, arguments.allocator)
    torch.zeros(1, device="cuda")
    loops = Loops(arguments.library, arguments.pairs, arguments.tries, arguments.holes)
    row["ns"], row["holes"] = measure(torch, loops)
    row["at_least"] = at_least(row["ns"], row["holes"], arguments.holes)
    return row | {"clock_ns": loops.clock_ns}


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--holes", type=int, default=HOLES)
    print("ROW " + json.dumps(run(parser.parse_args())), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # frees nothing more, which would take RMM's pool seconds
