"""torch.cuda.make_graphed_callables: a network's parts become CUDA graphs, forward and backward."""

from __future__ import annotations

from typing import Any

from tests.programs.training import perceptron, train

LIBRARIES = ()


def run(torch: Any, device: str) -> dict[str, Any]:
    body, head = perceptron(torch, device), perceptron(torch, device, depth=1)
    if device == "cuda":
        sample = torch.randn(32, 256, device=device)
        hidden = torch.randn(32, 256, device=device, requires_grad=True)
        body, head = torch.cuda.make_graphed_callables((body, head), ((sample,), (hidden,)))

    def loss_of(step: int) -> Any:
        inputs = torch.randn(32, 256).to(device)
        output = body(inputs)
        if step % 2:  # dynamic control flow between graphed parts
            output = torch.nn.functional.dropout(output, 0.1)
        return head(output).square().mean()

    losses = train(torch, torch.nn.ModuleList([body, head]), loss_of, 8)
    with torch.no_grad():
        inputs = torch.randn(32, 256).to(device)
        total = float(head(body(inputs)).double().sum())
    return {"losses": losses, "total": total}
