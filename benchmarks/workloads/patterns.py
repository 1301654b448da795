"""Patterns of requests with little or no computing behind them."""

from __future__ import annotations

from typing import Any

from .shapes import shapes_of
from .workload import Mark, Workload


def buffers(torch: Any, steps: int, mark: Mark) -> None:
    """Buffers of changing size up to 8 MiB, a third of them kept for a few steps.

    It needs no kernel at all, and so has no checksum.
    """
    shapes = shapes_of("buffers")
    kept: list[Any] = []
    for _ in range(steps):
        made = [
            torch.empty(shapes.randint(1, 8 << 20), dtype=torch.uint8, device="cuda")
            for _ in range(24)
        ]
        kept = [*kept[-24:], *made[::3]]
        del made
        mark(None)


WORKLOADS = (Workload(buffers, steps=40, family="pattern"),)
