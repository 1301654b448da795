"""What serving engines do with memory: graphs for many batch sizes, and sleep between turns."""

from __future__ import annotations

from typing import Any

from .models import on_gpu
from .shapes import shapes_of
from .workload import Mark, Workload

WIDTH = 2048
# The batch sizes for which engines capture a graph: close together, since others are padded.
GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8))


def _feed_forward(torch: Any, layers: int) -> Any:
    nn = torch.nn
    with on_gpu(torch, torch.bfloat16):
        return nn.Sequential(
            *(
                nn.Sequential(
                    nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
                    nn.Linear(4 * WIDTH, WIDTH),
                )
                for _ in range(layers)
            )
        ).eval()  # fmt: skip


class GraphedModel:
    """A model captured for each of GRAPH_SIZES; the graphs share one pool, the largest first.

    They replay one after the other, so each may use the same memory. A pool whose last graph is
    gone cannot be captured into again: capture anew with a new GraphedModel.
    """

    def __init__(self, torch: Any, model: Any) -> None:
        self.torch = torch
        self.model = model
        self.tokens = torch.zeros(max(GRAPH_SIZES), WIDTH, device="cuda", dtype=torch.bfloat16)
        self.graphs: dict[int, tuple[Any, Any]] = {}
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            model(self.tokens)  # libraries make their workspaces outside of the pool
            torch.cuda.synchronize()
            pool = torch.cuda.graph_pool_handle()
            for size in reversed(GRAPH_SIZES):
                self.graphs[size] = self._capture(size, pool)
        main.wait_stream(side)

    def _capture(self, size: int, pool: Any) -> tuple[Any, Any]:
        """torch.cuda.graph() would empty the cache before each of them."""
        graph = self.torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool)
        answer = self.model(self.tokens[:size])
        graph.capture_end()
        return graph, answer

    def __call__(self, tokens: Any) -> Any:
        """Return a copy of the answer, since another graph may write over it."""
        count = len(tokens)
        graph, answer = self.graphs[min(size for size in GRAPH_SIZES if size >= count)]
        self.tokens[:count].copy_(tokens)
        graph.replay()
        return answer[:count].clone()


def serving_graphs(torch: Any, steps: int, mark: Mark) -> None:
    """Thirty-five graphs of different batch sizes share a pool and replay in changing order.

    Between replays prompts of 256 to 8,192 tokens pass without a graph, in ordinary memory. In the
    middle of the run all graphs are dropped and captured anew, as when a model is exchanged.
    """
    shapes = shapes_of("serving_graphs")
    model = _feed_forward(torch, 4)
    with torch.no_grad():
        graphed = GraphedModel(torch, model)
        for step in range(steps):
            if step and step == steps // 2:
                del graphed
                graphed = GraphedModel(torch, model)
            total = torch.zeros((), device="cuda")
            for _ in range(8):
                length = shapes.randint(256, 8192)
                prompt = torch.randn(length, WIDTH, device="cuda", dtype=torch.bfloat16)
                total += model(prompt).float().sum()
                for _ in range(8):
                    tokens = prompt[: shapes.randint(1, min(256, length))]
                    total += graphed(tokens).float().sum()
            del prompt, tokens
            mark(total)
            del total


class Engine:
    """A server that can sleep: its weights go to the CPU, its cache is dropped."""

    LAYERS, EDGE = 32, 4096  # 1 GiB of weights
    CACHE_MIB = (2048, 6144)

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.weights: list[Any] = []
        self.cache: list[Any] = []
        shape = (self.EDGE, self.EDGE)
        one = (torch.randn(shape, device="cuda") / 64).to(torch.bfloat16).cpu().pin_memory()
        self.asleep = [one] * self.LAYERS  # the same numbers in each layer take the CPU no time

    def wake(self, cache_bytes: int) -> None:
        """Copy the weights back, and make a cache of a new size: a part for each layer."""
        self.weights = [weight.cuda(non_blocking=True) for weight in self.asleep]
        numbers = cache_bytes // self.LAYERS // 2
        self.cache = [
            self.torch.zeros(numbers, device="cuda", dtype=self.torch.float16)
            for _ in range(self.LAYERS)
        ]

    def serve(self, tokens: int) -> Any:
        """Pass tokens through all layers; each layer writes its cache."""
        torch = self.torch
        hidden = torch.randn(tokens, self.EDGE, device="cuda", dtype=torch.bfloat16)
        for weight, part in zip(self.weights, self.cache, strict=True):
            hidden = torch.nn.functional.gelu(hidden @ weight)
            part[: hidden.numel()].copy_(hidden.flatten()[: part.numel()])
        return hidden.float().sum()

    def sleep(self) -> None:
        """Give everything back to the card."""
        self.weights.clear()
        self.cache.clear()
        self.torch.cuda.empty_cache()


def sleep_wake(torch: Any, steps: int, mark: Mark) -> None:
    """A server wakes, serves, and sleeps; while it does, another model trains in its memory.

    As in reinforcement learning with vLLM's sleep mode. 1 GiB of weights and 2 to 6 GiB of cache
    leave the card with empty_cache() and come back each step, the cache at another size; what the
    trainer keeps must not hold their memory in pieces.
    """
    nn = torch.nn
    shapes = shapes_of("sleep_wake")
    engine = Engine(torch)
    with on_gpu(torch):
        trainer = nn.Sequential(
            nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 8192), nn.GELU(),
            nn.Linear(8192, 2048),
        )  # fmt: skip
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-4, foreach=True)
    for _ in range(steps):
        with torch.no_grad():
            engine.wake(shapes.randint(*engine.CACHE_MIB) << 20)
            served = sum(engine.serve(shapes.randint(64, 4096)) for _ in range(4))
            engine.sleep()
        batch = torch.randn(shapes.randint(4096, 32_768), 2048, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = trainer(batch).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss = loss.detach() + served
        del batch, served
        torch.cuda.empty_cache()
        mark(loss)
        del loss


WORKLOADS = (
    Workload(
        serving_graphs,
        steps=20,
        family="pattern",
        unordered="split matrix products may add with atomics",
    ),
    Workload(
        sleep_wake,
        steps=15,
        family="pattern",
        unordered="split matrix products may add with atomics",
    ),
)
