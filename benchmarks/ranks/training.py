"""Training on several devices: every rank has the whole model, or a part of each layer."""

from __future__ import annotations

import random
from typing import Any

from .program import Program, Rank

RATE = 1e-4


def sizes(rank: Rank) -> tuple[int, int, int]:
    """Return width, depth and the longest sequence."""
    return (1536, 10, 1024) if rank.is_cuda else (32, 2, 16)


def encoder(rank: Rank) -> Any:
    """Return a stack of transformer layers, the same on every rank."""
    nn = rank.torch.nn
    width, depth, _ = sizes(rank)
    rank.torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(
        width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).to(rank.device)


def batch(rank: Rank, step: int) -> Any:
    """Return the rank's own numbers; of one shape on all ranks, which changes with the step."""
    width, _, longest = sizes(rank)
    shapes = random.Random(step)
    count, length = shapes.randint(4, 12), shapes.randint(longest // 4, longest)
    numbers = rank.torch.Generator(rank.device).manual_seed(1000 * step + rank.index)
    return rank.torch.randn(count, length, width, generator=numbers, device=rank.device)


def take_steps(rank: Rank, model: Any) -> None:
    """Train on batches of changing shape."""
    torch = rank.torch
    # Flash attention's gradient is added up in a fixed order only where this is not a mere warning;
    # that of the two others is not at all.
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(rank.steps):
        with torch.autocast(rank.device.type, torch.bfloat16):
            loss = model(batch(rank, step)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        rank.mark(loss.detach())
        del loss


def ddp(rank: Rank) -> None:
    """The whole model on every rank; buckets of gradients are averaged (DDP)."""
    wrap = rank.torch.nn.parallel.DistributedDataParallel
    take_steps(rank, wrap(encoder(rank), device_ids=[rank.device] if rank.is_cuda else None))


def fsdp(rank: Rank) -> None:
    """A part of each layer on every rank; whole layers are gathered to compute (fully_shard)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(rank.device.type, (rank.count,))
    model = encoder(rank)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    take_steps(rank, model)


PROGRAMS = (Program(ddp, 14), Program(fsdp, 14))
