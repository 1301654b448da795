"""Automatic mixed precision: autocast to float16 and a GradScaler, which skips a step at first."""

from __future__ import annotations

from typing import Any

from tests.programs.training import image_network

LIBRARIES = ()


def run(torch: Any, device: str) -> dict[str, Any]:
    model = image_network(torch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**40)  # too much for float16
    losses, scales = [], []
    for step in range(30):
        images = torch.randn(4 + step % 5, 3, 48, 48).to(device)
        labels = torch.randint(0, 10, (images.shape[0],)).to(device)
        with torch.autocast(device, dtype=torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        scales.append(float(scaler.get_scale()))
    assert scales[-1] < scales[0]
    return {"losses": losses, "scales": scales}
