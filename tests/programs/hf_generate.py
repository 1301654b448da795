"""Generation with a cache of keys and values, by a small GPT-2 and a small Llama."""

from __future__ import annotations

import importlib
from typing import Any

LIBRARIES = ("transformers",)


def run(torch: Any, device: str) -> dict[str, Any]:
    transformers: Any = importlib.import_module("transformers")

    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=128, n_layer=2, n_head=4, vocab_size=1000)
    )
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=1000,
        )
    )  # fmt: skip
    answers: dict[str, Any] = {}
    for name, model in (("gpt2", gpt2), ("llama", llama)):
        model = model.to(device).eval()
        for count, length in ((2, 20), (5, 100), (1, 7)):
            prompts = torch.randint(1, 1000, (count, length)).to(device)
            with torch.no_grad():
                tokens = model.generate(
                    prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=24,
                    min_new_tokens=24, do_sample=False, pad_token_id=0,
                )  # fmt: skip
            answers[f"{name} {count}x{length}"] = tokens[:, length:].tolist()
    return answers
