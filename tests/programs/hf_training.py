"""A small GPT-2 of Hugging Face's transformers, trained on sequences of changing length."""

from __future__ import annotations

import importlib
import random
from typing import Any

from tests.programs.training import train

LIBRARIES = ("transformers",)


def run(torch: Any, device: str) -> dict[str, Any]:
    transformers: Any = importlib.import_module("transformers")

    shapes = random.Random(1)
    config = transformers.GPT2Config(
        n_embd=128, n_layer=2, n_head=4, n_positions=512, vocab_size=1000
    )
    model = transformers.GPT2LMHeadModel(config).to(device)

    def loss_of(_: int) -> Any:
        tokens = torch.randint(0, 1000, (shapes.randint(1, 4), shapes.randint(16, 512)))
        tokens = tokens.to(device)
        return model(input_ids=tokens, labels=tokens).loss

    return {"losses": train(torch, model, loss_of, 8)}
