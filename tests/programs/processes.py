"""CUDA tensors sent between processes on one GPU, through torch.multiprocessing's queues.

Each process uses the same allocator. The sender may drop its tensor before the receiver has looked
at it, as PyTorch documents: what was sent stays until the receiver has let go of it.
"""

from __future__ import annotations

import gc
import os
from typing import Any

from tests.programs import runner

LIBRARIES = ()
COUNTED = False  # when a sent block is freed depends on the other process
MIB = 1 << 20
SIZES = (1000, 300_000, 3 * MIB, 40 * MIB)
SECONDS = 60


def run(torch: Any, device: str) -> dict[str, Any]:
    import torch.multiprocessing as multiprocessing

    context = multiprocessing.get_context("spawn")
    there, back = context.Queue(), context.Queue()
    child = context.Process(target=serve, args=(there, back, device), daemon=True)
    child.start()

    def ask(what: str, sent: Any = None) -> Any:
        there.put((what, sent))
        return back.get(timeout=SECONDS)

    result: dict[str, Any] = {}
    try:
        result["whole"] = sent_whole(torch, device, ask)
        result["views"] = sent_views(torch, device, ask)
        result["dropped"] = sent_and_dropped(torch, device, there, back)
        result["returned"] = returned(torch, ask)
        result["shared"] = shared(torch, device, ask)
        ask("drop")
    finally:
        there.put(("end", None))
        child.join(SECONDS)
    result["exit code"] = child.exitcode
    gc.collect()
    if device == "cuda":
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
        result["left"] = torch.cuda.memory_allocated()
    return result


def serve(there: Any, back: Any, device: str) -> None:
    """Answer what the parent asks, in the child."""
    import torch

    runner.prepare(torch, os.environ[runner.DOOR])
    kept: list[Any] = []
    while True:
        what, sent = there.get()
        if what == "end":
            break
        answer: Any = None
        if what == "sum":
            answer = [int(each.sum(dtype=torch.int64)) for each in sent]
        elif what == "fill":
            sent.fill_(9)
            if device == "cuda":
                torch.cuda.synchronize()
        elif what == "keep":
            kept.append(sent)
        elif what == "sum kept":
            answer = [int(each.sum(dtype=torch.int64)) for each in kept]
        elif what == "make":
            kept = [full(torch, size, 1 + at, device) for at, size in enumerate(SIZES)]
            answer = kept
        elif what == "drop":
            kept = []
        del sent
        back.put(answer)
        del answer
    kept = []
    gc.collect()
    if device == "cuda":
        runner.check(torch, os.environ[runner.DOOR])


def full(torch: Any, size_bytes: int, value: int, device: str) -> Any:
    return torch.full((size_bytes,), value, dtype=torch.uint8, device=device)


def sent_whole(torch: Any, device: str, ask: Any) -> list[int]:
    """Tensors from small to large, all in one message; then written to from there."""
    tensors = [full(torch, size, 2 + at, device) for at, size in enumerate(SIZES)]
    sums: list[int] = ask("sum", tensors)
    assert sums == [size * (2 + at) for at, size in enumerate(SIZES)], sums
    ask("fill", tensors[1])
    assert int(tensors[1].min()) == int(tensors[1].max()) == 9
    assert int(tensors[0].max()) == 2  # a neighbour, perhaps in the same page
    return sums


def sent_views(torch: Any, device: str, ask: Any) -> list[int]:
    """Parts of one storage, twice the same one, and another shape."""
    base = torch.arange(24 * 1000, device=device).to(torch.int32)
    views = [base[100:200], base.view(24, 1000)[3], base[::2], base[100:200]]
    sums: list[int] = ask("sum", views)
    assert sums == [int(view.sum(dtype=torch.int64)) for view in views]
    return sums


def sent_and_dropped(torch: Any, device: str, there: Any, back: Any) -> list[int]:
    """The sender drops each at once and asks for as much again, which must be other memory."""
    for at in range(6):
        tensor = full(torch, 5 * MIB, 10 + at, device)
        there.put(("keep", tensor))
        del tensor
        full(torch, 5 * MIB, 99, device)
    for _ in range(6):
        back.get(timeout=SECONDS)
    there.put(("sum kept", None))
    sums: list[int] = back.get(timeout=SECONDS)
    assert sums == [5 * MIB * (10 + at) for at in range(6)], sums
    return sums


def returned(torch: Any, ask: Any) -> list[int]:
    """Tensors that the child made, read here, also when the child has dropped them."""
    tensors = ask("make")
    sums = [int(each.sum(dtype=torch.int64)) for each in tensors]
    ask("drop")
    assert sums == [int(each.sum(dtype=torch.int64)) for each in tensors]
    return sums


def shared(torch: Any, device: str, ask: Any) -> int:
    """share_memory_ changes nothing about a CUDA tensor: it can always be shared."""
    tensor = full(torch, 1000, 3, device)
    assert tensor.share_memory_().is_shared()
    ask("fill", tensor)
    return int(tensor.sum(dtype=torch.int64))
