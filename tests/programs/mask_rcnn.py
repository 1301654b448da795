"""A training step of torchvision's Mask R-CNN: the sizes depend on what the network finds."""

from __future__ import annotations

import importlib
import random
from typing import Any

from tests.programs.training import train

LIBRARIES = ("torchvision",)
DETERMINISTIC = False  # its pooling would be compiled anew, for minutes, to add in a fixed order
REPEATS = False
COUNTED = False
TOLERANCE = 0.05  # which boxes are kept may change with the last bit


def run(torch: Any, device: str) -> dict[str, Any]:
    detection: Any = importlib.import_module("torchvision.models.detection")

    shapes = random.Random(2)
    model = detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=96, max_size=160
    )
    model = model.to(device).train()

    def target(height: int, width: int) -> dict[str, Any]:
        count = shapes.randint(1, 4)
        corner = torch.rand(count, 2) * 0.5
        boxes = torch.cat([corner, corner + 0.2 + 0.3 * torch.rand(count, 2)], 1)
        return {
            "boxes": (boxes * torch.tensor([width, height, width, height])).to(device),
            "labels": torch.randint(1, 5, (count,)).to(device),
            "masks": (torch.rand(count, height, width) > 0.5).to(torch.uint8).to(device),
        }

    def loss_of(_: int) -> Any:
        sizes = [(shapes.randint(80, 140), shapes.randint(80, 140)) for _ in range(2)]
        images = [torch.rand(3, *size).to(device) for size in sizes]
        return sum(model(images, [target(*size) for size in sizes]).values())

    return {"losses": train(torch, model, loss_of, 3, rate=1e-5)}
