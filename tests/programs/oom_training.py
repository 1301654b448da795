"""Running out of memory in the middle of a training step, and training on."""

from __future__ import annotations

from typing import Any

from tests.programs.training import perceptron

LIBRARIES = ()
LIMIT_BYTES = 1600 << 20
COUNTED = False  # how far a step gets depends on what is cached
WIDTH = 512
FITS, DOES_NOT = 1 << 10, 1 << 18  # rows of a batch; of the second, the input and two more


def run(torch: Any, device: str) -> dict[str, Any]:
    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total))
    model = perceptron(torch, device, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for count in (FITS, DOES_NOT, FITS, 3 * FITS, DOES_NOT, FITS):
        try:
            loss = model(torch.full((count, WIDTH), 0.5, device=device)).square().mean()
            loss.backward()
        except torch.OutOfMemoryError:
            losses.append(-1.0)
            optimizer.zero_grad()
            continue
        losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    if device == "cuda":
        assert [loss == -1.0 for loss in losses] == [False, True, False, False, True, False], losses
    return {"losses": losses}
