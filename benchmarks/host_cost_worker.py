"""Measure what memory costs on the host under one allocator, and print one line of JSON.

    python -m benchmarks.host_cost_worker --allocator paged@stock --library LIBRARY

LIBRARY is benchmarks/host_cost.cpp, compiled. Costs are nanoseconds, the best of several tries; a
cost that the allocator cannot have (it refuses the call) is null.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

from benchmarks.allocators import choose, enable
from benchmarks.worker import machine

SIZES = {"512": 512, "64K": 64 << 10, "1M": 1 << 20, "4M": 4 << 20, "64M": 64 << 20}
DEPTH = 16
HOLES = 10_000
THREADS = (1, 2, 4, 8)
SMALL = 4096  # for the threads and the history
CONTEXTS = {"none": None, "state": "state", "all": "all"}
HISTORY_ENTRIES = 100_000  # what PyTorch's own text on snapshots asks for


class Loops:
    """The compiled loops. Calls let go of Python's lock, except those with `history`."""

    def __init__(self, library: str, pairs: int, tries: int) -> None:
        self.pairs = pairs
        self.tries = tries
        self._free = ctypes.CDLL(library)
        self._locked = ctypes.PyDLL(library)
        for loops in (self._free, self._locked):
            loops.pair_ns.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
            loops.threads_ns.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]
            loops.device_stats_ns.argtypes = [ctypes.c_int]
            for each in (loops.pair_ns, loops.threads_ns, loops.device_stats_ns):
                each.restype = ctypes.c_double

    def pair(self, size_bytes: int) -> float | None:
        return self._best(lambda: self._free.pair_ns(size_bytes, self.pairs, DEPTH))

    def pair_with_python(self, size_bytes: int) -> float | None:
        """The same, holding Python's lock: a history of Python's frames asks for it."""
        return self._best(lambda: self._locked.pair_ns(size_bytes, self.pairs, DEPTH))

    def threads(self, count: int) -> float | None:
        return self._best(lambda: self._free.threads_ns(SMALL, self.pairs // 2, count))

    def device_stats(self) -> float | None:
        return self._best(lambda: self._free.device_stats_ns(self.pairs))

    def _best(self, measure: Callable[[], float]) -> float | None:
        found = min(measure() for _ in range(self.tries))
        return None if found < 0 else round(found, 1)


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


def make_holes(torch: Any) -> list[Any]:
    """Return live tensors of many sizes between HOLES free places."""
    shapes = random.Random(3)
    made = [
        torch.empty(shapes.randint(1, 200) * 512 + 1, dtype=torch.uint8, device="cuda")
        for _ in range(2 * HOLES)
    ]
    return made[::2]


def history_added(torch: Any, loops: Loops) -> dict[str, float | None]:
    """Return what recording adds to one pair, by how much of the call stack it keeps."""
    found: dict[str, float | None] = {}
    off = loops.pair_with_python(SMALL)
    for name, context in CONTEXTS.items():
        try:
            torch.cuda.memory._record_memory_history(
                "all", context=context, stacks="python", max_entries=HISTORY_ENTRIES
            )
        except RuntimeError:  # an allocator without a history
            found[f"history {name}"] = None
            continue
        on = loops.pair_with_python(SMALL)
        torch.cuda.memory._record_memory_history(None)
        found[f"history {name}"] = None if on is None or off is None else round(on - off, 1)
    return found


def measure(torch: Any, loops: Loops) -> dict[str, float | None]:
    """Measure everything; the holes come last but for the history, which slows what follows."""
    costs: dict[str, float | None] = {}
    for name, size_bytes in SIZES.items():
        costs[f"pair {name}"] = loops.pair(size_bytes)
    for count in THREADS:
        costs[f"{count} threads"] = loops.threads(count)
    costs["getDeviceStats"] = loops.device_stats()
    for name, size_bytes in SIZES.items():
        costs[f"torch.empty {name}"] = python_pair(torch, size_bytes, loops)
    kept = make_holes(torch)
    for name, size_bytes in SIZES.items():
        costs[f"pair {name}, holes"] = loops.pair(size_bytes)
    del kept
    torch.cuda.empty_cache()
    return costs | history_added(torch, loops)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--tries", type=int, default=5)
    arguments = parser.parse_args()
    door = choose(arguments.allocator, os.environ)
    import torch

    served_by = enable(torch, door)
    torch.zeros(1, device="cuda")
    loops = Loops(arguments.library, arguments.pairs, arguments.tries)
    row = {"allocator": arguments.allocator, "door": served_by, "ns": measure(torch, loops)}
    print("ROW " + json.dumps(row | {"machine": machine(torch)}), flush=True)


if __name__ == "__main__":
    main()
