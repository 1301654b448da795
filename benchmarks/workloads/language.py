"""Training of language models on sequences of varying length."""

from __future__ import annotations

import importlib
from typing import Any

from .models import on_gpu, train
from .shapes import shapes_of, share
from .workload import Mark, Sized, Workload


def _gpt2(torch: Any) -> Any:
    transformers: Any = importlib.import_module("transformers")
    config = transformers.GPT2Config(n_embd=1024, n_layer=12, n_head=16, n_positions=2048)
    with on_gpu(torch):
        return transformers.GPT2LMHeadModel(config)


def _loss(torch: Any, model: Any, words: int, count: int, length: int) -> Any:
    tokens = torch.randint(0, words, (count, length), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(input_ids=tokens, labels=tokens).loss


def gpt2_varlen(torch: Any, steps: int, mark: Mark) -> None:
    """A 12-layer GPT-2 on batches of about 8,192 tokens, cut into sequences of varying length.

    The lengths are those of written texts, lognormal: most are near 330 tokens, some fill 2,048.
    """
    shapes = shapes_of("gpt2_varlen")
    model = _gpt2(torch)

    def loss_of(_: int) -> Any:
        length = min(2048, int(shapes.lognormvariate(5.8, 0.7)) + 16)
        count = max(1, min(32, 8192 // length))
        return _loss(torch, model, 50257, count, length)

    train(torch, model.parameters(), loss_of, steps, mark)


def gpt2_batch(torch: Any, size: int, steps: int, mark: Mark) -> None:
    """GPT-2 on batches of up to `size` sequences of up to 512 tokens."""
    shapes = shapes_of("gpt2_varlen")
    model = _gpt2(torch)

    def loss_of(step: int) -> Any:
        count = share(size, step)
        length = 512 if step == 2 else shapes.randint(256, 512)
        return _loss(torch, model, 50257, count, length)

    train(torch, model.parameters(), loss_of, steps, mark)


WORKLOADS = (
    Workload(
        gpt2_varlen,
        steps=40,
        family="model",
        requires=("transformers>=4.40",),
        libraries=("transformers.models.gpt2.modeling_gpt2",),
        unordered="attention's backward pass adds with atomics",
        sized=Sized("sequences", gpt2_batch, smallest=4, steps=4),
    ),
)
