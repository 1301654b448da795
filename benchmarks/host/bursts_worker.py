"""Time operations that come in bursts under one allocator, and print one line of JSON.

    python -m benchmarks.host.bursts_worker --allocator isolated-tensor

The row's `us` maps the number of operations in a burst to the median microseconds of one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import deque
from typing import Any

from ..allocators import choose, put_in_place

COUNTS = (100, 250, 500, 1000, 2000)
ELEMENTS = 1000  # of 4 bytes: a page of its own where each tensor has one
LIVE = 4  # results that are alive at a time
PAUSE_MS = 50.0
WARM_BURSTS, BURSTS = 4, 12


def burst_us(torch: Any, left: Any, right: Any, count: int, pause_ms: float) -> float:
    """Return the host's microseconds of an operation in one burst, then let the card finish."""
    live: deque[Any] = deque(maxlen=LIVE)
    began = time.perf_counter()
    for _ in range(count):
        live.append(left + right)
    us = (time.perf_counter() - began) / count * 1e6
    live.clear()
    torch.cuda.synchronize()
    time.sleep(pause_ms / 1e3)
    return us


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all counts; returns the row."""
    allocator, pause_ms = arguments.allocator, arguments.pause_ms
    choose(allocator, os.environ)
    import torch

    door = put_in_place(torch, allocator)
    left, right = (torch.ones(ELEMENTS, device="cuda") for _ in range(2))
    found = {}
    for count in arguments.counts:
        bursts = [
            burst_us(torch, left, right, count, pause_ms) for _ in range(WARM_BURSTS + BURSTS)
        ]
        found[str(count)] = statistics.median(bursts[WARM_BURSTS:])
    return {"allocator": allocator, "door": door, "us": found}


def counts(text: str) -> list[int]:
    """Split a comma-separated argument."""
    return [int(word) for word in text.split(",") if word]


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add what both programs take."""
    parser.add_argument("--counts", type=counts, default=list(COUNTS), help="operations in a burst")
    parser.add_argument("--pause-ms", type=float, default=PAUSE_MS, help="after each burst")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocator", required=True)
    parser.add_argument("--library", help="not used; what run_worker() gives every worker")
    add_limits(parser)
    print("ROW " + json.dumps(run(parser.parse_args())), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # gives nothing back piece by piece
