"""The measurements that the project's source documents claim, as far as they say what they did.

They are four articles on PyTorch's GPU memory; docs/what-is-true.md says what is true of them. The
numbers are theirs: none names its programs, and so models and shapes are ours.
"""

from __future__ import annotations

import importlib
import random
from typing import Any

from .models import on_gpu, training_steps
from .shapes import shapes_of
from .unet import make_unet
from .workload import Mark, Workload

WORDS = 32_000
EMPTY_EVERY = 100  # batches, as the document has it


def _text_model(torch: Any, width: int, layers: int, heads: int) -> Any:
    nn = torch.nn
    with on_gpu(torch):
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        return nn.ModuleList([nn.Embedding(WORDS, width), encoder, nn.Linear(width, WORDS, False)])


def _train_on_text(torch: Any, shapes: random.Random, model: Any, steps: int, mark: Mark) -> None:
    """Train on batches of 4,000 to 9,000 tokens, in at most 16 texts of one length."""
    embedding, encoder, head = model

    def loss_of(_: int) -> Any:
        length = shapes.choice([shapes.randint(64, 512), shapes.randint(64, 2048)])
        texts = max(1, min(16, shapes.randint(4000, 9000) // length))
        tokens = torch.randint(0, WORDS, (texts, length), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = head(encoder(embedding(tokens)))
            flat = scores.float().view(-1, WORDS)
            return torch.nn.functional.cross_entropy(flat, tokens.view(-1))

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def train(torch: Any, steps: int, mark: Mark) -> None:
    """An 8-layer transformer on texts of 64 to 2,048 tokens: what the documents complain of.

    They report 3 GB allocated where the card shows 10 GB in use, and advise max_split_size_mb.
    """
    model = _text_model(torch, 1024, 8, 16)
    _train_on_text(torch, shapes_of("train"), model, steps, mark)


def text_varlen(torch: Any, steps: int, mark: Mark) -> None:
    """A small transformer on texts of varying length, for hundreds of steps, left alone.

    The document claims for an A100 that such training used 45 % of the memory it held, and 78 % at
    95 % of the speed with max_split_size_mb:64 and the cache emptied every 100 batches; see
    text_varlen_emptied.
    """
    model = _text_model(torch, 512, 2, 8)
    _train_on_text(torch, shapes_of("text_varlen"), model, steps, mark)


def text_varlen_emptied(torch: Any, steps: int, mark: Mark) -> None:
    """The same training as text_varlen with torch.cuda.empty_cache() every 100 batches.

    The document claims 78 % of the held memory in use instead of 45 %, at 95 % of the speed, with
    max_split_size_mb:64: allocator native-split64 beside native.
    """
    done = 0

    def mark_and_empty(loss: Any) -> None:
        nonlocal done
        done += 1
        if done % EMPTY_EVERY == 0:
            torch.cuda.empty_cache()
        mark(loss)

    model = _text_model(torch, 512, 2, 8)
    _train_on_text(torch, shapes_of("text_varlen"), model, steps, mark_and_empty)


def _train_bert(torch: Any, batch: int, steps: int, mark: Mark) -> None:
    """Train on the same sentences whatever the batch: 16 at a time have one longest."""
    transformers: Any = importlib.import_module("transformers")
    shapes = shapes_of("bert_batch16")
    with on_gpu(torch):
        model = transformers.BertForMaskedLM(transformers.BertConfig())

    def loss_of(_: int) -> Any:
        length = max(shapes.randint(128, 512) for _ in range(batch // 16))
        tokens = torch.randint(0, 30_522, (batch, length), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(input_ids=tokens, labels=tokens).loss

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def bert_batch16(torch: Any, steps: int, mark: Mark) -> None:
    """BERT in training on batches of 16 sentences, padded to 128 to 512 tokens.

    The document claims that shared GPU memory lets the batch rise from 16 to 32, which takes 30 %
    off the training time; bert_batch32 sees the same sentences in half the steps.
    """
    _train_bert(torch, 16, steps, mark)


def bert_batch32(torch: Any, steps: int, mark: Mark) -> None:
    """BERT in training on batches of 32, the sentences of two batches of bert_batch16.

    The document claims 30 % less training time than with batches of 16. The time to compare is the
    whole run's, since a step has twice the sentences.
    """
    _train_bert(torch, 32, steps, mark)


def segmentation_3d(torch: Any, steps: int, mark: Mark) -> None:
    """A 3D U-Net trained on cut-outs of a scan, and every fourth step run over a whole scan.

    The document claims 40 % less memory and 25 % more throughput for the segmentation of medical
    images with shared GPU memory. Between training steps the whole scan is an odd guest: its
    scores, a volume for each class, are as large as the scan is.
    """
    shapes = shapes_of("segmentation_3d")
    classes, edge = 4, 96
    with on_gpu(torch):
        model = make_unet(torch, 3, 1, [24, 48, 96, 192], classes)

    def whole_scan() -> None:
        """Window by window, as a scan's activations are more than a card holds."""
        slices, height, width = (edge * shapes.randint(1, 3) for _ in range(3))
        scan = torch.randn(1, 1, slices, height, width, device="cuda")
        scores = torch.zeros(1, classes, slices, height, width, device="cuda")
        starts = [range(0, length, edge) for length in scan.shape[2:]]
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            for z in starts[0]:
                for y in starts[1]:
                    for x in starts[2]:
                        window = (..., slice(z, z + edge), slice(y, y + edge), slice(x, x + edge))
                        scores[window] += model(scan[window])
        scores.argmax(1)

    def loss_of(step: int) -> Any:
        if step % 4 == 3:
            whole_scan()
        cuts = shapes.randint(1, 4)
        cut = torch.randn(cuts, 1, edge, edge, edge, device="cuda")
        labels = torch.randint(0, classes, (cuts, edge, edge, edge), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(cut).float(), labels)

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def seed004(torch: Any, steps: int, mark: Mark) -> None:
    """The document's own loop: 100 square matrices of 100 to 1,000, their squares, a third kept.

    It is what the document offers for measuring max_split_size_mb; it deletes tensors from the list
    that it walks, so here a third is kept for two steps instead.
    """
    shapes = shapes_of("seed004")
    kept: list[Any] = []
    for _ in range(steps):
        edges = [shapes.randint(100, 1000) for _ in range(100)]
        made = [torch.full((edge, edge), 1 / edge, device="cuda") for edge in edges]
        squares = [matrix @ matrix.T for matrix in made]
        kept = [*kept[-200:], *made[::3]]
        checksum = squares[-1].sum() + kept[0].sum()
        del made, squares
        mark(checksum)
        del checksum


ATTENTION = "attention's backward pass adds with atomics"
BERT = ("transformers>=4.40",), ("transformers.models.bert.modeling_bert",)
WORKLOADS = (
    Workload(train, steps=60, family="document", unordered=ATTENTION),
    Workload(text_varlen, steps=210, family="document", unordered=ATTENTION),
    Workload(text_varlen_emptied, steps=210, family="document", unordered=ATTENTION),
    Workload(bert_batch16, 40, "document", 2, *BERT, unordered=ATTENTION),
    Workload(bert_batch32, 20, "document", 2, *BERT, unordered=ATTENTION),
    Workload(
        segmentation_3d,
        steps=24,
        family="document",
        smoke_steps=4,
        unordered="cuDNN's backward passes may add with atomics",
    ),
    Workload(seed004, steps=60, family="document"),
)
