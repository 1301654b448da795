"""Work on several streams, with tensors handed from one to another."""

from __future__ import annotations

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


WORKLOADS = (
    Workload(
        prefetch_train,
        steps=40,
        family="model",
        unordered="pooling's and cuDNN's backward passes may add with atomics",
    ),
)
