"""Work on several streams, with tensors handed from one to another."""

from __future__ import annotations

import importlib
from typing import Any

from .models import on_gpu
from .shapes import shapes_of
from .workload import Mark, Workload


def _image_classifier(torch: Any) -> Any:
    nn = torch.nn
    with on_gpu(torch):
        return nn.Sequential(
            *(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU()),
            *(nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten()),
            *(nn.Linear(256 * 64, 4096), nn.ReLU(), nn.Linear(4096, 1000)),
        )


class Prefetcher:
    """Copies batches of images to the GPU on a stream of its own, two batches ahead."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.shapes = shapes_of("prefetch_train")
        self.stream = torch.cuda.Stream()
        # Every batch is a part of one: new random numbers would take the CPU longer than the step.
        self.pixels = torch.randn(64 * 3 * 512 * 512).pin_memory()
        self.ahead = [self._fetch(), self._fetch()]

    def _fetch(self) -> Any:
        count = self.shapes.randint(8, 64)
        height, width = 32 * self.shapes.randint(4, 16), 32 * self.shapes.randint(4, 16)
        images = self.pixels[: count * 3 * height * width].view(count, 3, height, width)
        with self.torch.cuda.stream(self.stream):
            return images.cuda(non_blocking=True)

    def next(self, user: Any) -> Any:
        """Return a batch for the stream `user`, and begin to copy another one."""
        user.wait_stream(self.stream)
        images = self.ahead.pop(0)
        images.record_stream(user)
        self.ahead.append(self._fetch())
        return images


def _gather(torch: Any, gradients: list[Any], side: Any) -> None:
    """As data-parallel training does: one flat buffer, worked on elsewhere, copied back."""
    main = torch.cuda.current_stream()
    with torch.cuda.stream(side):
        bucket = torch.cat([gradient.flatten() for gradient in gradients])
        bucket.mul_(0.5)
    for gradient in gradients:
        gradient.record_stream(side)
    main.wait_stream(side)
    start = 0
    for gradient in gradients:
        gradient.copy_(bucket[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()
    bucket.record_stream(main)


def prefetch_train(torch: Any, steps: int, mark: Mark) -> None:
    """Images copied ahead on a second stream, gradients gathered in buckets on a third.

    What one stream frees, another cannot use until both have come to that point.
    """
    model = _image_classifier(torch)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    batches, gathers = Prefetcher(torch), torch.cuda.Stream()
    main = torch.cuda.current_stream()
    for _ in range(steps):
        images = batches.next(main)
        labels = torch.randint(0, 1000, (images.shape[0],), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        gathers.wait_stream(main)
        for first in range(0, len(parameters), 4):
            gradients = [parameter.grad for parameter in parameters[first : first + 4]]
            _gather(torch, gradients, gathers)
        del gradients
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.detach()
        del images, labels
        mark(loss)
        del loss


def serve_streams(torch: Any, steps: int, mark: Mark) -> None:
    """Three models serve requests on a stream each, and hand their answers to the main stream.

    1 to 32 images of 128 to 512 pixels: what one stream has free, another one cannot see.
    """
    timm: Any = importlib.import_module("timm")
    shapes = shapes_of("serve_streams")
    names = ("resnet50", "convnext_tiny", "resnet18")
    sides = [torch.cuda.Stream() for _ in names]
    with on_gpu(torch):
        models = [timm.create_model(name).eval() for name in names]
    main = torch.cuda.current_stream()

    def serve(side: Any, model: Any) -> Any:
        side.wait_stream(main)
        images = shapes.choice([1, 4, 16, 32])
        height, width = 32 * shapes.randint(4, 16), 32 * shapes.randint(4, 16)
        with torch.cuda.stream(side):
            answer = model(torch.randn(images, 3, height, width, device="cuda"))
        answer.record_stream(main)
        return answer

    for _ in range(steps):
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            answers = [serve(side, model) for side, model in zip(sides, models, strict=True)]
            for side in sides:
                main.wait_stream(side)
            checksum = sum(answer.float().sum() for answer in answers)
        del answers
        mark(checksum)
        del checksum


def streams(torch: Any, steps: int, mark: Mark) -> None:
    """Four streams make and free 30 buffers each by turns; one of each is handed over.

    Of 0.25 to 10 MiB. Each stream needs the most only for a moment, so a cache per stream holds
    four times what is needed. A step is ten rounds.
    """
    shapes = shapes_of("streams")
    sides = [torch.cuda.Stream() for _ in range(4)]
    main = torch.cuda.current_stream()

    def burst(side: Any) -> Any:
        with torch.cuda.stream(side):
            sizes = [shapes.randint(1, 40) << 18 for _ in range(30)]
            made = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
            total = made[0].fill_(1).float().sum()
        made[1].record_stream(main)
        return total

    for _ in range(steps):
        totals = [burst(side) for _ in range(10) for side in sides]
        for side in sides:
            main.wait_stream(side)
        checksum = sum(totals)
        for total in totals:
            total.record_stream(main)
        del totals, total
        mark(checksum)
        del checksum


def pipeline(torch: Any, steps: int, mark: Mark) -> None:
    """Eight parts of a batch pass through four stages, each on a stream of its own, and back.

    As pipeline-parallel training does on several cards: a part's activations are made on one
    stream and used on the next, so that each block is held until two streams are past it, and
    several parts of differing length are on their way at once.
    """
    nn = torch.nn
    shapes = shapes_of("pipeline")
    with on_gpu(torch):
        stages = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)
            )
            for _ in range(4)
        )
    optimizer = torch.optim.AdamW(stages.parameters(), lr=1e-4, foreach=True)
    sides = [torch.cuda.Stream() for _ in stages]
    main = torch.cuda.current_stream()

    def pass_through(part: Any) -> Any:
        """Autograd runs each stage's way back on the stream of its way there."""
        before = main
        for side, stage in zip(sides, stages, strict=True):
            side.wait_stream(before)
            part.record_stream(side)
            with torch.cuda.stream(side):
                part = stage(part)
            before = side
        main.wait_stream(before)
        part.record_stream(main)
        return part.square().mean()

    for _ in range(steps):
        lengths = [shapes.randint(256, 4096) for _ in range(8)]
        losses = [pass_through(torch.randn(length, 1024, device="cuda")) for length in lengths]
        loss = sum(losses)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.detach()
        del losses
        mark(loss)
        del loss


WORKLOADS = (
    Workload(
        prefetch_train,
        steps=40,
        family="model",
        unordered="pooling's and cuDNN's backward passes may add with atomics",
    ),
    Workload(
        serve_streams,
        steps=10,
        family="model",
        requires=("timm>=0.9",),
        libraries=("timm",),
        unordered="cuDNN may add with atomics",
    ),
    Workload(streams, steps=15, family="pattern"),
    Workload(
        pipeline,
        steps=20,
        family="pattern",
        unordered="gradients of several parts are added in the order in which streams come",
    ),
)
