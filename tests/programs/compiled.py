"""torch.compile in its default mode: training, and a shape that was not there before."""

from __future__ import annotations

from typing import Any

from tests.programs.training import perceptron, train

LIBRARIES = ()
SIZES = (32, 32, 32, 48, 48, 80)  # the second makes it compile for any size


def run(torch: Any, device: str) -> dict[str, Any]:
    model = perceptron(torch, device)
    compiled = torch.compile(model)

    def loss_of(step: int) -> Any:
        inputs = torch.randn(SIZES[step], 256).to(device)
        return compiled(inputs).square().mean()

    losses = train(torch, model, loss_of, len(SIZES))
    with torch.no_grad():
        inputs = torch.randn(17, 256).to(device)
        difference = float((compiled(inputs) - model(inputs)).abs().max())
    assert difference < 1e-3, difference
    return {"losses": losses}
