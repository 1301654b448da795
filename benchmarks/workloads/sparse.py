"""Models whose shapes the data decide: graphs, and experts chosen token by token."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from .models import on_gpu, training_steps
from .shapes import shapes_of, share
from .workload import Mark, Sized, Workload


def _graph_layers(torch: Any) -> Any:
    layers: Any = importlib.import_module("torch_geometric.nn")

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

    with on_gpu(torch):
        return Layers()


def _train_on_graphs(
    torch: Any, graph_of: Callable[[int], tuple[int, int]], steps: int, mark: Mark
) -> None:
    """Train on a random graph a step, of so many nodes and edges."""
    model = _graph_layers(torch)

    def loss_of(step: int) -> Any:
        node_count, edge_count = graph_of(step)
        edges = torch.randint(0, node_count, (2, edge_count), device="cuda")
        nodes = torch.randn(node_count, 128, device="cuda")
        labels = torch.randint(0, 47, (node_count,), device="cuda")
        return torch.nn.functional.cross_entropy(model(nodes, edges), labels)

    training_steps(torch, model.parameters(), loss_of, steps, mark)


def gnn(torch: Any, steps: int, mark: Mark) -> None:
    """Three graph layers on a new random graph each step: blocks of GBs, never of one size twice.

    20,000 to 200,000 nodes with 4 to 16 edges each; the messages along edges are the largest.
    """
    shapes = shapes_of("gnn")

    def graph_of(_: int) -> tuple[int, int]:
        node_count = shapes.randint(20_000, 200_000)
        return node_count, shapes.randint(4, 16) * node_count

    _train_on_graphs(torch, graph_of, steps, mark)


def gnn_nodes(torch: Any, size: int, steps: int, mark: Mark) -> None:
    """Graphs of up to `size` thousand nodes with 8 to 12 edges a node."""
    shapes = shapes_of("gnn")

    def graph_of(step: int) -> tuple[int, int]:
        node_count = 1000 * share(size, step)
        return node_count, node_count * (12 if step == 2 else shapes.randint(8, 12))

    _train_on_graphs(torch, graph_of, steps, mark)


def _experts_layer(torch: Any, width: int, experts: int) -> Any:
    nn = torch.nn

    class Experts(torch.nn.Module):  # type: ignore[misc]
        """Each token goes to the two experts with the highest scores."""

        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(width, experts)
            self.rise = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(experts))
            self.fall = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(experts))

        def forward(self, tokens: Any) -> Any:
            scores, chosen = self.router(tokens).softmax(-1).topk(2, -1)
            total = torch.zeros_like(tokens)
            for expert, (rise, fall) in enumerate(zip(self.rise, self.fall, strict=True)):
                token, place = (chosen == expert).nonzero(as_tuple=True)
                hidden = nn.functional.gelu(rise(tokens[token]))
                part = fall(hidden) * scores[token, place, None]
                total = total.index_add(0, token, part.to(total.dtype))
            return tokens + total

    return Experts()


def moe(torch: Any, steps: int, mark: Mark) -> None:
    """Six layers of 16 experts: the data decide how many tokens each one gets.

    Of 2,000 to 24,000 tokens a step each layer makes 16 groups, no two of the same size.
    """
    shapes = shapes_of("moe")
    with on_gpu(torch):
        layers = torch.nn.ModuleList(_experts_layer(torch, 1024, 16) for _ in range(6))

    def loss_of(_: int) -> Any:
        tokens = torch.randn(shapes.randint(2000, 24_000), 1024, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for layer in layers:
                tokens = layer(tokens)
            return tokens.float().square().mean()

    training_steps(torch, layers.parameters(), loss_of, steps, mark)


WORKLOADS = (
    Workload(
        gnn,
        steps=40,
        family="model",
        requires=("torch_geometric>=2.5",),
        libraries=("torch_geometric.nn",),
        unordered="scatter adds with atomics",
        sized=Sized("thousand nodes", gnn_nodes, smallest=20, steps=5),
    ),
    Workload(moe, steps=16, family="model", unordered="index_add adds with atomics"),
)
