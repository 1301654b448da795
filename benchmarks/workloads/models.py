"""Models are made on the GPU, and trained by one loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .workload import Mark


@contextlib.contextmanager
def on_gpu(torch: Any, dtype: Any = None) -> Iterator[None]:
    """Make parameters on the GPU from the start: random numbers for them take a CPU seconds."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype or usual)
    try:
        with torch.device("cuda"):
            yield
    finally:
        torch.set_default_dtype(usual)


def training_steps(
    torch: Any, parameters: Iterable[Any], loss_of: Callable[[int], Any], steps: int, mark: Mark
) -> None:
    """Train with AdamW; the gradients are freed at each step's end, as is the default."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
    for step in range(steps):
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.detach()
        mark(loss)
        del loss
