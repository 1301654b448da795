"""Patterns of requests with little computing behind them, or none."""

from __future__ import annotations

import random
from typing import Any

from .models import on_gpu, training_steps
from .shapes import SEEDS, shapes_of, share
from .unet import make_unet
from .workload import Mark, Sized, Workload


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


def checker(torch: Any, steps: int, mark: Mark) -> None:
    """Equal buffers, every other one freed, then larger ones that fit no hole.

    30, 50, 70 MiB and on: every free block is 20 MiB too small for what comes next. Only memory
    that can be joined from pieces apart serves this without growing.
    """
    kept: list[Any] = []
    for step in range(steps):
        size_bytes = (30 + 20 * step) << 20
        made = [
            torch.full((size_bytes,), step, dtype=torch.uint8, device="cuda")
            for _ in range(120 // (step + 1))
        ]
        kept = [*kept[-1:], made[::2]]
        del made
        checksum = sum(buffer[-1].long() for buffers in kept for buffer in buffers)
        mark(checksum)
        del checksum


class Request:
    """The keys and values of one request: a tensor for each layer, longer by every token."""

    HEADS, WIDTH = 8, 128

    def __init__(self, torch: Any, tokens: int | list[int], layers: int = 8) -> None:
        self.torch = torch
        each = tokens if isinstance(tokens, list) else [tokens] * (2 * layers)
        self.tensors = [self._of(count) for count in each]

    def _of(self, tokens: int) -> Any:
        shape = (1, self.HEADS, tokens, self.WIDTH)
        return self.torch.full(shape, 1.0, device="cuda", dtype=self.torch.float16)

    def grow(self, tokens: int) -> None:
        """Make each tensor longer, by copying it."""
        for index in range(len(self.tensors)):
            more = self._of(tokens)
            self.tensors[index] = self.torch.cat([self.tensors[index], more], 2)

    def checksum(self) -> Any:
        """Return how many numbers it holds, by their sum."""
        return sum(tensor.sum(dtype=self.torch.float32) for tensor in self.tensors)


def kv(torch: Any, steps: int, mark: Mark) -> None:
    """Caches of 24 requests, each grown by a token at a time; requests end and begin at random.

    A block that grows by 2 KiB with every token fits the hole it left only if something else was
    freed beside it. A step is 20 tokens for every request.
    """
    shapes = shapes_of("kv")

    def begin() -> Request:
        return Request(torch, [shapes.randint(16, 1024) for _ in range(16)])

    requests = [begin() for _ in range(24)]
    for _ in range(steps):
        for _ in range(20):
            for index, request in enumerate(requests):
                if shapes.random() < 0.01:
                    requests[index] = request = begin()
                request.grow(1)
        del request
        mark(requests[0].checksum())


def kv_requests(torch: Any, size: int, steps: int, mark: Mark) -> None:
    """Caches of up to `size` requests of 1,024 to 4,096 tokens, which grow by 64 tokens a step.

    A request is the same whatever the size, or more of them might need less.
    """
    requests: dict[int, Request] = {}
    for step in range(steps):
        count = share(size, step)
        for index in [index for index in requests if index >= count]:
            del requests[index]
        for index in range(count):
            if index not in requests:
                shapes = random.Random(SEEDS["kv"] + 100_000 * step + index)
                requests[index] = Request(torch, shapes.randint(1024, 4096))
            requests[index].grow(64)
        mark(requests[0].checksum())


def conv(torch: Any, steps: int, mark: Mark) -> None:
    """A 2D U-Net on batches of 1 to 8 images, 128 to 768 pixels high and wide.

    The largest step needs some hundred times the memory of the smallest.
    """
    shapes = shapes_of("conv")
    with on_gpu(torch):
        model = make_unet(torch, 2, 3, [64, 128, 256], 2)

    def loss_of(_: int) -> Any:
        height, width = 32 * shapes.randint(4, 24), 32 * shapes.randint(4, 24)
        images = torch.randn(shapes.randint(1, 8), 3, height, width, device="cuda")
        return model(images).square().mean()

    training_steps(torch, model.parameters(), loss_of, steps, mark)


SMALL_TENSORS_A_STEP = 50_000


def small_tensors(torch: Any, steps: int, mark: Mark) -> None:
    """A million tensors of ten numbers, all kept: 40 bytes each, where blocks are of 512.

    What is measured is the cost of an allocation with very many live ones beside it. A step is
    50,000 of them; one in a thousand is written, and read at the end of every step.
    """
    kept: list[Any] = []
    for _ in range(steps):
        made = [torch.empty(10, device="cuda") for _ in range(SMALL_TENSORS_A_STEP)]
        for index, tensor in enumerate(made[::1000]):
            tensor.fill_(index)
        kept.extend(made)
        del made, tensor
        mark(torch.stack(kept[::1000]).sum())


WORKLOADS = (
    Workload(checker, steps=6, family="pattern"),
    Workload(
        kv,
        steps=20,
        family="pattern",
        sized=Sized("requests", kv_requests, smallest=8, steps=5),
    ),
    Workload(
        conv,
        steps=30,
        family="pattern",
        unordered="cuDNN's backward passes may add with atomics",
    ),
    Workload(small_tensors, steps=20, family="pattern"),
    Workload(buffers, steps=40, family="pattern"),
)
