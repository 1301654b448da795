"""Gradient checkpointing, in both of PyTorch's kinds: activations are made twice."""

from __future__ import annotations

from typing import Any

from tests.programs.training import perceptron, train

LIBRARIES = ()


def run(torch: Any, device: str) -> dict[str, Any]:
    from torch.utils.checkpoint import checkpoint

    result: dict[str, Any] = {}
    for name, arguments in (
        ("plain", None),
        ("reentrant", {"use_reentrant": True}),
        ("not reentrant", {"use_reentrant": False}),
    ):
        torch.manual_seed(3)
        blocks = torch.nn.ModuleList(perceptron(torch, device, depth=2) for _ in range(4))

        def loss_of(step: int, blocks: Any = blocks, arguments: Any = arguments) -> Any:
            hidden = torch.randn(64 + 32 * step, 256).to(device).requires_grad_()
            for block in blocks:
                if arguments is None:
                    hidden = block(hidden)
                else:
                    hidden = checkpoint(block, hidden, **arguments)
            return hidden.square().mean()

        result[name] = train(torch, blocks, loss_of, 5)
    for name in ("reentrant", "not reentrant"):
        pairs = zip(result[name], result["plain"], strict=True)
        assert all(abs(one - other) <= 1e-5 * abs(other) for one, other in pairs), result
    return result
