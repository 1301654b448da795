"""Language models that write: caches that grow by a token at a time."""

from __future__ import annotations

import importlib
from typing import Any

from .models import on_gpu
from .shapes import shapes_of, share
from .workload import Mark, Sized, Workload

WORDS = 32_000


def _llama(torch: Any, dtype: Any) -> Any:
    transformers: Any = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=WORDS, max_position_embeddings=8192,
    )  # fmt: skip
    with on_gpu(torch, dtype):
        return transformers.LlamaForCausalLM(config)


def _answers(torch: Any, model: Any, prompts: int, length: int, tokens: int) -> Any:
    """Return prompts and answers, one row each."""
    asked = torch.randint(1, WORDS, (prompts, length), device="cuda")
    with torch.no_grad():
        return model.generate(
            asked, attention_mask=torch.ones_like(asked), max_new_tokens=tokens,
            min_new_tokens=tokens, do_sample=False, pad_token_id=0,
        )  # fmt: skip


def llama_generate(torch: Any, steps: int, mark: Mark) -> None:
    """A 12-layer Llama that answers batches of 1 to 16 prompts; its cache grows with each token.

    Prompts have 32 to 2,048 tokens, answers 4 to 12: each token asks for all layers' keys and
    values anew, one token longer. More tokens would take host time only, some 50 ms each.
    """
    shapes = shapes_of("llama_generate")
    model = _llama(torch, torch.bfloat16).eval()
    for _ in range(steps):
        prompts, length = shapes.randint(1, 16), shapes.randint(32, 2048)
        tokens = shapes.randint(16, 48) // 4
        answers = _answers(torch, model, prompts, length, tokens)
        mark(answers[:, length:].sum())  # no loss: the tokens stand for it
        del answers


def llama_batch(torch: Any, size: int, steps: int, mark: Mark) -> None:
    """Answers of 8 tokens to up to `size` prompts of up to 2,048."""
    shapes = shapes_of("llama_generate")
    model = _llama(torch, torch.bfloat16).eval()
    for step in range(steps):
        length = 2048 if step == 2 else shapes.randint(1024, 2048)
        answers = _answers(torch, model, share(size, step), length, 8)
        mark(answers[:, length:].sum())
        del answers


def rlhf(torch: Any, steps: int, mark: Mark) -> None:
    """A Llama writes answers, then trains on them: growing caches and training by turns.

    Each phase leaves holes of other sizes than the next one asks for.
    """
    shapes = shapes_of("rlhf")
    model = _llama(torch, torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for _ in range(steps):
        prompts, length = shapes.randint(4, 16), shapes.randint(32, 512)
        tokens = shapes.randint(16, 40) // 3
        model.eval()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            answers = _answers(torch, model, prompts, length, tokens)
        model.train()
        for part in answers.split(max(1, prompts // 2)):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids=part, labels=part, use_cache=False).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.detach()
        del answers, part
        mark(loss)
        del loss


WORKLOADS = (
    Workload(
        llama_generate,
        steps=12,
        family="model",
        requires=("transformers>=4.40",),
        libraries=("transformers.models.llama.modeling_llama",),
        unordered="split matrix products may add with atomics",
        sized=Sized("prompts", llama_batch, smallest=4, steps=3),
    ),
    Workload(
        rlhf,
        steps=6,
        family="model",
        requires=("transformers>=4.40",),
        libraries=("transformers.models.llama.modeling_llama",),
        unordered="attention's backward pass adds with atomics",
    ),
)
