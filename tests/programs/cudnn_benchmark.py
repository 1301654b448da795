"""Convolutions under cudnn.benchmark, which asks how much memory it may try algorithms with."""

from __future__ import annotations

from typing import Any

from tests.programs.training import image_network, train

LIBRARIES = ()
REPEATS = False  # the fastest algorithm is not always the same one
COUNTED = False


def run(torch: Any, device: str) -> dict[str, Any]:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    model = image_network(torch, device)

    def loss_of(step: int) -> Any:
        count, side = ((8, 64), (8, 96), (3, 64))[step % 3]
        images = torch.randn(count, 3, side, side).to(device)
        labels = torch.randint(0, 10, (count,)).to(device)
        return torch.nn.functional.cross_entropy(model(images), labels)

    return {"losses": train(torch, model, loss_of, 9, rate=1e-4)}
