"""Models of images and volumes of varying size."""

from __future__ import annotations

import importlib
import random
from typing import Any

from .models import on_gpu, training_steps
from .shapes import SEEDS, shapes_of, share
from .unet import make_unet
from .workload import Mark, Sized, Workload

Boxes = dict[str, Any]


def _image_with_boxes(torch: Any, shapes: random.Random, edges: tuple[int, int]) -> Boxes:
    """Return an image between two edges in pixels, and up to 12 boxes with masks in it."""
    height, width = shapes.randint(*edges), shapes.randint(*edges)
    boxes = shapes.randint(1, 12)
    image = torch.rand(3, height, width, device="cuda")
    corner = torch.rand(boxes, 2, device="cuda") * 0.5
    opposite = corner + 0.1 + torch.rand(boxes, 2, device="cuda") * 0.4
    pixels = torch.tensor([width, height, width, height], device="cuda")
    return {
        "image": image,
        "boxes": torch.cat([corner, opposite], 1) * pixels,
        "labels": torch.randint(1, 21, (boxes,), device="cuda"),
        "masks": (torch.rand(boxes, height, width, device="cuda") > 0.5).to(torch.uint8),
    }


def _mask_rcnn(torch: Any, **edges: int) -> Any:
    torchvision: Any = importlib.import_module("torchvision")
    with on_gpu(torch):
        return torchvision.models.detection.maskrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=21, **edges
        ).train()


def _detection_loss(model: Any, targets: list[Boxes]) -> Any:
    images = [target.pop("image") for target in targets]
    return sum(model(images, targets).values())


def maskrcnn(torch: Any, steps: int, mark: Mark) -> None:
    """Mask R-CNN on four images of 300 to 900 pixels: the data decide how many boxes and masks.

    The batch is padded to its largest image, with 1 to 12 objects in each; proposals and matches
    are as many as are found, so that sizes below the backbone are known to nobody beforehand.
    """
    shapes = shapes_of("maskrcnn")
    model = _mask_rcnn(torch)

    def loss_of(_: int) -> Any:
        targets = [_image_with_boxes(torch, shapes, (300, 900)) for _ in range(4)]
        return _detection_loss(model, targets)

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def maskrcnn_images(torch: Any, size: int, steps: int, mark: Mark) -> None:
    """Mask R-CNN on up to `size` images, scaled to 256 to 448 pixels.

    An image has the same shapes whatever the size, or a larger batch might need less.
    """
    model = _mask_rcnn(torch, min_size=256, max_size=448)

    def loss_of(step: int) -> Any:
        targets = []
        for index in range(share(size, step)):
            shapes = random.Random(SEEDS["maskrcnn"] + 1000 * step + index)
            targets.append(_image_with_boxes(torch, shapes, (256, 448)))
        return _detection_loss(model, targets)

    training_steps(torch, model.parameters(), loss_of, steps, mark)


CHANNELS = [24, 48, 96, 192]


def unet3d(torch: Any, steps: int, mark: Mark) -> None:
    """A four-level 3D U-Net on volumes whose edges vary from 48 to 144 voxels.

    Twenty-seven times as much memory lies between the smallest volume and the largest, and each
    level's features wait until the way back up.
    """
    shapes = shapes_of("unet3d")
    with on_gpu(torch):
        model = make_unet(torch, 3, 1, CHANNELS, 3)

    def loss_of(_: int) -> Any:
        edges = [8 * shapes.randint(6, 18) for _ in range(3)]
        volume = torch.randn(1, 1, *edges, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(volume).float().square().mean()

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def unet3d_edge(torch: Any, size: int, steps: int, mark: Mark) -> None:
    """One scan of up to 8 * `size` slices, in slabs of 64, with one pass back for all.

    Slabs, as kernels count the elements of one tensor with 31 bits.
    """
    shapes = shapes_of("unet3d")
    with on_gpu(torch):
        model = make_unet(torch, 3, 1, CHANNELS, 3)

    def loss_of(step: int) -> Any:
        height, width = (
            (160, 160) if step == 2 else (8 * shapes.randint(14, 20), 8 * shapes.randint(14, 20))
        )
        left = 8 * share(size, step)
        total = torch.zeros((), device="cuda")
        while left:
            slices = min(64, left)
            left -= slices
            slab = torch.randn(1, 1, slices, height, width, device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                total = total + model(slab).float().square().mean()
        return total

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def diffusion_multires(torch: Any, steps: int, mark: Mark) -> None:
    """Two image models answer requests of 1 to 8 images of 128 to 1,024 pixels.

    As in image generation at many resolutions; no gradients, so that nothing lives long.
    """
    timm: Any = importlib.import_module("timm")
    shapes = shapes_of("diffusion_multires")
    with on_gpu(torch):
        models = [timm.create_model(name).eval() for name in ("convnext_small", "resnet50")]
    for _ in range(steps):
        sums = []
        for model in models:
            height, width = 32 * shapes.randint(4, 32), 32 * shapes.randint(4, 32)
            images = shapes.choice([1, 2, 4, 8])
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
                answer = model(torch.randn(images, 3, height, width, device="cuda"))
            sums.append(answer.float().sum())
            del answer
        mark(sum(sums))
        del sums


CUDNN = "cuDNN's backward passes may add with atomics"
WORKLOADS = (
    Workload(
        maskrcnn,
        steps=8,
        family="model",
        requires=("torchvision>=0.15",),
        libraries=("torchvision.models.detection",),
        unordered="RoIAlign's and cuDNN's backward passes add with atomics",
        sized=Sized("images", maskrcnn_images, smallest=2, steps=3),
    ),
    Workload(
        unet3d,
        steps=24,
        family="model",
        unordered=CUDNN,
        sized=Sized("eighths of the edge", unet3d_edge, smallest=4, steps=3),
    ),
    Workload(
        diffusion_multires,
        steps=10,
        family="model",
        requires=("timm>=0.9",),
        libraries=("timm",),
        unordered="cuDNN may add with atomics",
    ),
)
