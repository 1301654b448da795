"""torch.compile in the mode reduce-overhead: inference and training as trees of CUDA graphs.

PyTorch keeps these graphs' memory in one private pool, puts the pool's state back before each
recording, and checks after each run that exactly the tensors it knows of are live there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

from tests.programs.training import perceptron, train

LIBRARIES = ()
COUNTED = False  # putting a pool's state back is counted as PyTorch likes


def run(torch: Any, device: str) -> dict[str, Any]:
    from torch._dynamo.utils import counters
    from torch._inductor import config

    assert config.triton.slow_path_cudagraph_asserts
    model = perceptron(torch, device, depth=2)
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    result: dict[str, Any] = {"inference": infer(torch, compiled, device)}
    result["losses"] = learn(torch, model, compiled, device)
    result["inference later"] = infer(torch, compiled, device)
    result["two parts"] = two_parts(torch, device)
    result["skipped"] = counters["inductor"]["cudagraph_skips"]
    result["recorded inputs"] = counters["inductor"]["cudagraph_recorded_non_static_inputs"]
    del model, compiled
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        assert result["skipped"] == 0
        assert result["recorded inputs"] > 0
        torch.cuda.empty_cache()
        result["left bytes"] = torch.cuda.memory_stats()["requested_bytes.all.current"]
    return result


def infer(torch: Any, compiled: Any, device: str) -> list[float]:
    """Warm up, record and replay for one shape, then for another, then the first again."""
    found = []
    with torch.no_grad():
        for count in (32, 32, 32, 32, 64, 64, 64, 32, 64):
            torch.compiler.cudagraph_mark_step_begin()
            inputs = torch.randn(count, 256).to(device)
            found.append(float(compiled(inputs).double().sum()))
    return found


def learn(torch: Any, model: Any, compiled: Any, device: str) -> list[float]:
    """Take training steps: forward and backward are two graphs of one tree."""

    def loss_of(step: int) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        inputs = torch.randn(64 if step in (5, 6, 7) else 32, 256).to(device)
        return compiled(inputs).square().mean()

    return train(torch, model, loss_of, 10)


def two_parts(torch: Any, device: str) -> list[float]:
    """Two graphs in a row whose first leaves a tensor alive, in a branching order."""

    def graphs(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        made: Callable[[Any], Any] = torch.compile(function, mode="reduce-overhead", dynamic=False)
        return made

    first = graphs(lambda inputs: torch.relu(inputs @ inputs.T) + 1)
    second = graphs(lambda inputs: (inputs * 2).sum(dim=0))
    other = graphs(lambda inputs: inputs.softmax(dim=-1) @ inputs)
    found = []
    with torch.no_grad():
        for step in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            inputs = torch.randn(64, 64).to(device)
            kept = first(inputs)
            last = second(kept) if step % 2 == 0 else other(kept)
            found += [float(last.double().sum()), float(kept.double().sum())]
            if step == 5:
                copy = kept.clone()  # outlives its graph's run
            del kept, last
    return [*found, float(copy.double().sum())]
