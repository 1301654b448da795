"""A U-Net of two or three dimensions: each level's features wait for the way back up."""

from __future__ import annotations

from typing import Any


def make_unet(torch: Any, dimensions: int, inputs: int, channels: list[int], outputs: int) -> Any:
    """Return one on the current default device; every level but the first halves the edges."""
    nn = torch.nn
    functional = nn.functional
    conv = nn.Conv2d if dimensions == 2 else nn.Conv3d
    norm = nn.BatchNorm2d if dimensions == 2 else nn.InstanceNorm3d
    activation = nn.ReLU if dimensions == 2 else nn.LeakyReLU
    halve = functional.max_pool2d if dimensions == 2 else functional.max_pool3d

    def block(before: int, after: int) -> Any:
        return nn.Sequential(
            *(conv(before, after, 3, padding=1), norm(after), activation()),
            *(conv(after, after, 3, padding=1), norm(after), activation()),
        )

    class UNet(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            pairs = list(zip([inputs, *channels], channels, strict=False))
            self.down = nn.ModuleList(block(before, after) for before, after in pairs)
            ups = [(after + before, before) for before, after in pairs[:0:-1]]
            self.up = nn.ModuleList(block(joined, after) for joined, after in ups)
            self.last = conv(channels[0], outputs, 1)

        def forward(self, image: Any) -> Any:
            levels: list[Any] = []
            for stage in self.down:
                image = stage(halve(image, 2) if levels else image)
                levels.append(image)
            levels.pop()
            for stage in self.up:
                image = functional.interpolate(image, scale_factor=2)
                image = stage(torch.cat([image, levels.pop()], 1))
            return self.last(image)

    return UNet()
