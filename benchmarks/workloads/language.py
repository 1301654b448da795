"""Training of language models on sequences of varying length."""

from __future__ import annotations

import importlib
from typing import Any

from .models import on_gpu, training_steps
from .shapes import shapes_of, share
from .workload import Mark, Sized, Workload

GPT2_WORDS, BERT_WORDS = 50_257, 30_522


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
        return _loss(torch, model, GPT2_WORDS, count, length)

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def gpt2_batch(torch: Any, size: int, steps: int, mark: Mark) -> None:
    """GPT-2 on batches of up to `size` sequences of up to 512 tokens."""
    shapes = shapes_of("gpt2_varlen")
    model = _gpt2(torch)

    def loss_of(step: int) -> Any:
        count = share(size, step)
        length = 512 if step == 2 else shapes.randint(256, 512)
        return _loss(torch, model, GPT2_WORDS, count, length)

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def _bert(torch: Any) -> Any:
    transformers: Any = importlib.import_module("transformers")
    with on_gpu(torch):
        return transformers.BertForMaskedLM(transformers.BertConfig())


def bert_dynpad(torch: Any, steps: int, mark: Mark) -> None:
    """BERT on batches of 32, each padded to its longest sentence: 17 to 511 tokens.

    The longest of 1, 2 or 8 sentences: sizes change at every step, and short ones come between.
    """
    shapes = shapes_of("bert_dynpad")
    model = _bert(torch)

    def loss_of(_: int) -> Any:
        sentences = range(shapes.choice([1, 2, 8]))
        return _loss(torch, model, BERT_WORDS, 32, max(shapes.randint(8, 512) for _ in sentences))

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def bert_batch(torch: Any, size: int, steps: int, mark: Mark) -> None:
    """BERT on batches of up to `size` sentences of up to 512 tokens."""
    shapes = shapes_of("bert_dynpad")
    model = _bert(torch)

    def loss_of(step: int) -> Any:
        length = 512 if step == 2 else shapes.randint(256, 512)
        return _loss(torch, model, BERT_WORDS, share(size, step), length)

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def llama_lora_ckpt(torch: Any, steps: int, mark: Mark) -> None:
    """A 16-layer Llama with LoRA: checkpointing frees and makes anew each layer's activations.

    Pairs of texts of 128 to 4,096 tokens: short-lived blocks of another size each step, beside
    weights that stay.
    """
    peft: Any = importlib.import_module("peft")
    transformers: Any = importlib.import_module("transformers")
    shapes = shapes_of("llama_lora_ckpt")
    config = transformers.LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=16,
        num_key_value_heads=4, vocab_size=32_000, max_position_embeddings=8192,
    )  # fmt: skip
    with on_gpu(torch, torch.bfloat16):
        base = transformers.LlamaForCausalLM(config)
    base.gradient_checkpointing_enable()
    base.enable_input_require_grads()
    base.config.use_cache = False
    targets = ["q_proj", "v_proj"]
    lora = peft.LoraConfig(r=16, target_modules=targets, task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, lora).train()

    def loss_of(_: int) -> Any:
        tokens = torch.randint(0, 32_000, (2, shapes.randint(128, 4096)), device="cuda")
        return model(input_ids=tokens, labels=tokens).loss

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training_steps(torch, trained, loss_of, steps, mark)


ATTENTION = "attention's backward pass adds with atomics"
WORKLOADS = (
    Workload(
        gpt2_varlen,
        steps=40,
        family="model",
        requires=("transformers>=4.40",),
        libraries=("transformers.models.gpt2.modeling_gpt2",),
        unordered=ATTENTION,
        sized=Sized("sequences", gpt2_batch, smallest=4, steps=4),
    ),
    Workload(
        bert_dynpad,
        steps=40,
        family="model",
        requires=("transformers>=4.40",),
        libraries=("transformers.models.bert.modeling_bert",),
        unordered=ATTENTION,
        sized=Sized("sentences", bert_batch, smallest=4, steps=4),
    ),
    Workload(
        llama_lora_ckpt,
        steps=16,
        family="model",
        requires=("transformers>=4.40", "peft>=0.10"),
        libraries=("transformers.models.llama.modeling_llama", "peft"),
        unordered=ATTENTION,
    ),
)
