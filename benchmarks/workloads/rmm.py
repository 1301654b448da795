"""The two loops with which RMM measures its own allocators, with its numbers.

Taken from the programs random_allocations and multi_stream_allocations of RMM's benchmarks
(github.com/rapidsai/rmm, cpp/benchmarks, 26.10): the distributions, not the code. Its generator is
another one, so the sizes are not the very same.
"""

from __future__ import annotations

import random
from typing import Any

from .shapes import shapes_of
from .workload import Mark, Workload

MOST_BYTES = 16_000 << 20
ALLOCATE_PERCENT = 73
CHECK_EVERY = 16


def _random_loop(torch: Any, chances: random.Random, count: int, most_mib: int) -> Any:
    """Make `count` buffers of 1 byte to `most_mib`, uniformly, and free a random one now and then.

    One in CHECK_EVERY is written when it is made and read when it is freed: returns their sum.
    """
    live: list[Any] = []
    live_bytes = made = 0
    total = torch.zeros((), device="cuda", dtype=torch.int64)
    for _ in range(2 * count):
        size = chances.randint(1, most_mib << 20)
        may = made < count and live_bytes + size < MOST_BYTES
        if not live or (may and chances.randrange(100) < ALLOCATE_PERCENT):
            buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
            if made % CHECK_EVERY == 0:
                buffer[-1:].fill_(made % 251)
            live.append((made, buffer))
            live_bytes += size
            made += 1
        else:
            index = chances.randrange(len(live))
            live[index], live[-1] = live[-1], live[index]
            number, buffer = live.pop()
            live_bytes -= buffer.numel()
            if number % CHECK_EVERY == 0:
                total += buffer[-1]
        del buffer
    return total


def _random_allocations(torch: Any, name: str, count: int, most_mib: int) -> Any:
    """Run the loop once, with the same numbers every time, as RMM does."""
    return _random_loop(torch, shapes_of(name), count, most_mib)


def rmm_random_4m(torch: Any, steps: int, mark: Mark) -> None:
    """RMM's random_allocations: 10,000 buffers of up to 4 MiB, at most 16,000 MiB at once.

    Of each hundred turns 73 make a buffer and the others free one of those there are.
    """
    for _ in range(steps):
        mark(_random_allocations(torch, "rmm_random_4m", 10_000, 4))


def rmm_random_64m(torch: Any, steps: int, mark: Mark) -> None:
    """RMM's random_allocations: 1,000 buffers of up to 64 MiB, at most 16,000 MiB at once."""
    for _ in range(steps):
        mark(_random_allocations(torch, "rmm_random_64m", 1000, 64))


def rmm_random_4g(torch: Any, steps: int, mark: Mark) -> None:
    """RMM's random_allocations as it runs by default: 1,000 buffers of up to 4 GiB.

    At most 16,000 MiB at once, so that about eight live at a time: a test of large holes.
    """
    for _ in range(steps):
        mark(_random_allocations(torch, "rmm_random_4g", 1000, 4096))


def rmm_multi_stream(torch: Any, steps: int, mark: Mark) -> None:
    """RMM's multi_stream_allocations: 1 to 4 streams by turns make 8 bytes for a kernel each.

    The kernel spins a million clock ticks; its buffer is freed while it runs. RMM starts four and
    waits; a step here does that 25 times, on one stream more than the step before, then on one.
    """
    sides = [torch.cuda.Stream() for _ in range(4)]
    main = torch.cuda.current_stream()
    for step in range(steps):
        total = torch.zeros((), device="cuda", dtype=torch.int64)
        for _ in range(25):
            for kernel in range(4):
                with torch.cuda.stream(sides[kernel % (step % 4 + 1)]):
                    buffer = torch.empty(1, dtype=torch.int64, device="cuda")
                    torch.cuda._sleep(1_000_000)
                    buffer.fill_(kernel)
            for side in sides:
                main.wait_stream(side)
            buffer.record_stream(main)
            total += buffer[0]
            del buffer
            torch.cuda.synchronize()
        mark(total)
        del total


WORKLOADS = (
    Workload(rmm_random_4m, steps=20, family="rmm"),
    Workload(rmm_random_64m, steps=40, family="rmm"),
    Workload(rmm_random_4g, steps=40, family="rmm"),
    Workload(rmm_multi_stream, steps=24, family="rmm", smoke_steps=4),
)
