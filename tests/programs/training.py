"""What the programs share: a loop over steps, and two small networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def train(
    torch: Any, model: Any, loss_of: Callable[[int], Any], steps: int, rate: float = 1e-3
) -> list[float]:
    """Take the steps; returns the loss of each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        loss = loss_of(step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    return losses


def perceptron(torch: Any, device: str, width: int = 256, depth: int = 4) -> Any:
    """Return a stack of normalised linear layers, of `width` in and out."""
    nn = torch.nn
    layers: list[Any] = []
    for _ in range(depth):
        layers += [nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, width)).to(device)


def image_network(torch: Any, device: str, classes: int = 10) -> Any:
    """Return a small convolutional classifier of images of any size."""
    nn = torch.nn
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes)),
    ).to(device)
