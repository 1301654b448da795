"""Training and generation whose shapes change from step to step, with models of random weights.

Each takes (torch, steps, mark) and calls mark(loss) at the end of every step. Seeds are fixed, so
every allocator is asked for the same sequence of sizes. A model that other libraries have comes
from there: the point is what real code asks of an allocator.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Mark = Callable[[Any], None]
Loss = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    """A loop, its usual number of steps, and what it needs beside torch.

    `unordered` names the kernels whose additions have no fixed order by default, so that two native
    runs may already differ; torch.use_deterministic_algorithms replaces them.
    """

    run: Callable[[Any, int, Mark], None]
    steps: int
    requires: tuple[str, ...]  # what pip is asked for
    unordered: str

    @property
    def missing(self) -> list[str]:
        """What of `requires` cannot be imported."""
        return [
            requirement
            for requirement in self.requires
            if importlib.util.find_spec(requirement.partition(">")[0]) is None
        ]


def _train(torch: Any, parameters: Iterable[Any], loss_of: Loss, steps: int, mark: Mark) -> None:
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=True)
    for _ in range(steps):
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mark(loss.detach())
        del loss


def gpt2_varlen(torch: Any, steps: int, mark: Mark) -> None:
    """A 12-layer GPT-2 on batches of about 8,192 tokens, cut into sequences of varying length."""
    transformers: Any = importlib.import_module("transformers")

    shapes = random.Random(11)
    config = transformers.GPT2Config(n_embd=1024, n_layer=12, n_head=16, n_positions=2048)
    model = transformers.GPT2LMHeadModel(config).cuda()

    def loss_of() -> Any:
        length = min(2048, int(shapes.lognormvariate(5.8, 0.7)) + 16)
        count = max(1, min(32, 8192 // length))
        tokens = torch.randint(0, 50257, (count, length), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(input_ids=tokens, labels=tokens).loss

    _train(torch, model.parameters(), loss_of, steps, mark)


def gnn(torch: Any, steps: int, mark: Mark) -> None:
    """Three graph layers on a new random graph each step: 20,000 to 200,000 nodes."""
    layers: Any = importlib.import_module("torch_geometric.nn")

    shapes = random.Random(17)

    class Layers(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = layers.SAGEConv(128, 256)
            self.attention = layers.GATConv(256, 64, heads=4)
            self.last = layers.SAGEConv(256, 47)

        def forward(self, nodes: Any, edges: Any) -> Any:
            hidden = torch.relu(self.first(nodes, edges))
            hidden = torch.relu(self.attention(hidden, edges))
            return self.last(hidden, edges)

    model = Layers().cuda()

    def loss_of() -> Any:
        node_count = shapes.randint(20_000, 200_000)
        edge_count = shapes.randint(4, 16) * node_count
        edges = torch.randint(0, node_count, (2, edge_count), device="cuda")
        nodes = torch.randn(node_count, 128, device="cuda")
        labels = torch.randint(0, 47, (node_count,), device="cuda")
        return torch.nn.functional.cross_entropy(model(nodes, edges), labels)

    _train(torch, model.parameters(), loss_of, steps, mark)


def prefetch_train(torch: Any, steps: int, mark: Mark) -> None:
    """Images copied ahead on a second stream, gradients gathered in buckets on a third."""
    nn = torch.nn
    shapes = random.Random(21)
    copies, gathers = torch.cuda.Stream(), torch.cuda.Stream()
    main = torch.cuda.current_stream()
    model = nn.Sequential(
        *(nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU()),
        *(nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten()),
        *(nn.Linear(256 * 64, 4096), nn.ReLU(), nn.Linear(4096, 1000)),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    parameters = list(model.parameters())

    def fetch() -> Any:
        count = shapes.randint(8, 64)
        height, width = 32 * shapes.randint(4, 16), 32 * shapes.randint(4, 16)
        images = torch.randn(count, 3, height, width).pin_memory()
        with torch.cuda.stream(copies):
            return images.cuda(non_blocking=True)

    def gather(gradients: list[Any]) -> None:
        """As data-parallel training does: one flat buffer, worked on elsewhere, copied back."""
        with torch.cuda.stream(gathers):
            bucket = torch.cat([gradient.flatten() for gradient in gradients])
            bucket.mul_(0.5)
        for gradient in gradients:
            gradient.record_stream(gathers)
        main.wait_stream(gathers)
        start = 0
        for gradient in gradients:
            gradient.copy_(bucket[start : start + gradient.numel()].view_as(gradient))
            start += gradient.numel()
        bucket.record_stream(main)

    ahead = [fetch(), fetch()]
    for _ in range(steps):
        main.wait_stream(copies)
        images = ahead.pop(0)
        images.record_stream(main)
        ahead.append(fetch())
        labels = torch.randint(0, 1000, (images.shape[0],), device="cuda")
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        gathers.wait_stream(main)
        for first in range(0, len(parameters), 4):
            gather([parameter.grad for parameter in parameters[first : first + 4]])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mark(loss.detach())
        del images, labels, loss


def llama_generate(torch: Any, steps: int, mark: Mark) -> None:
    """A 12-layer Llama that answers batches of 1 to 16 prompts; its cache grows with each token."""
    transformers: Any = importlib.import_module("transformers")

    shapes = random.Random(14)
    config = transformers.LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=32_000, max_position_embeddings=8192,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).cuda().eval()
    for _ in range(steps):
        shape = shapes.randint(1, 16), shapes.randint(32, 2048)
        count = shapes.randint(16, 48)
        prompts = torch.randint(1, 32_000, shape, device="cuda")
        with torch.no_grad():
            answers = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=count,
                min_new_tokens=count, do_sample=False, pad_token_id=0,
            )  # fmt: skip
        mark(answers[:, shape[1] :].sum())  # no loss: the tokens stand for it
        del answers


def buffers(torch: Any, steps: int, mark: Mark) -> None:
    """Buffers of changing size, a third kept for a few steps; needs no kernel library at all."""
    shapes = random.Random(5)
    kept: list[Any] = []
    for _ in range(steps):
        made = [
            torch.empty(shapes.randint(1, 8 << 20), dtype=torch.uint8, device="cuda")
            for _ in range(24)
        ]
        kept = [*kept[-24:], *made[::3]]
        mark(None)
        del made


WORKLOADS = {
    "gpt2_varlen": Workload(
        gpt2_varlen, 40, ("transformers>=4.40",), "attention's backward pass adds with atomics"
    ),
    "gnn": Workload(gnn, 40, ("torch_geometric>=2.5",), "scatter adds with atomics"),
    "prefetch_train": Workload(
        prefetch_train, 40, (), "pooling's and cuDNN's backward passes may add with atomics"
    ),
    "llama_generate": Workload(
        llama_generate, 24, ("transformers>=4.40",), "split matrix products may add with atomics"
    ),
    "buffers": Workload(buffers, 40, (), ""),
}
# Those of the README's table.
MAIN_WORKLOADS = ("gpt2_varlen", "gnn", "prefetch_train", "llama_generate")
