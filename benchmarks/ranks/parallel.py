"""A model that is cut: by its layers (a pipeline), or through each layer (tensor parallel).

Both must end with the losses that one device gets with the whole model, which `whole` computes.
A layer has two matrices, `up` and `down`; the model ends with a third kind, `head`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .program import Program, Rank

MICRO_BATCHES = 4
RATE = 0.3

Weights = list[tuple[Any, ...]]


def sizes(rank: Rank) -> tuple[int, int, int]:
    """Return width, layers and rows of a batch."""
    return (2048, 8, 8192) if rank.is_cuda else (16, 4, 8)


def make(rank: Rank, number: int, part: Callable[[Any, int], Any] = lambda whole, _: whole) -> Any:
    """Return what `part` takes of a layer's matrices; their numbers are the same on every rank.

    The layer after the last one is the head.
    """
    torch = rank.torch
    width, depth, _ = sizes(rank)
    numbers = torch.Generator(rank.device).manual_seed(number)
    shapes = [(width, width)] if number == depth else [(4 * width, width), (width, 4 * width)]
    whole = [
        torch.randn(shape, generator=numbers, device=rank.device) * (shape[1] ** -0.5 / 2)
        for shape in shapes
    ]
    return tuple(
        part(each, dimension).clone(memory_format=torch.contiguous_format).requires_grad_()
        for dimension, each in enumerate(whole)
    )


def batch(rank: Rank, step: int) -> Any:
    """Return a step's micro-batches, the same on every rank."""
    width, _, rows = sizes(rank)
    numbers = rank.torch.Generator(rank.device).manual_seed(1000 + step)
    made = rank.torch.randn(rows, width, generator=numbers, device=rank.device)
    return made.chunk(MICRO_BATCHES)


def apply(torch: Any, weights: tuple[Any, ...], inputs: Any) -> Any:
    """Apply a layer or the head."""
    if len(weights) == 1:
        return inputs @ weights[0].t()
    up, down = weights
    return inputs + torch.nn.functional.gelu(inputs @ up.t()) @ down.t()


def loss_of(outputs: Any) -> Any:
    """Return a micro-batch's part of the loss."""
    return outputs.square().mean() / MICRO_BATCHES


def trainer(rank: Rank, mine: Weights) -> Any:
    """Return the optimizer of these weights."""
    return rank.torch.optim.SGD([each for weights in mine for each in weights], lr=RATE)


def train(rank: Rank, mine: Weights, forward: Callable[[Any], Any]) -> None:
    """Train on one micro-batch after the other; `forward` is the model."""
    optimizer = trainer(rank, mine)
    for step in range(rank.steps):
        total = 0.0
        for inputs in batch(rank, step):
            loss = loss_of(forward(inputs))
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        rank.mark(total)
        del loss, inputs, total


def whole(rank: Rank) -> None:
    """Train the whole model on this device."""
    _, depth, _ = sizes(rank)
    mine = [make(rank, number) for number in range(depth + 1)]

    def forward(inputs: Any) -> Any:
        for weights in mine:
            inputs = apply(rank.torch, weights, inputs)
        return inputs

    train(rank, mine, forward)


# --- a pipeline -----------------------------------------------------------------------------------


def pipeline(rank: Rank) -> None:
    """Some of the layers on every rank: all micro-batches go forward, then all go back (GPipe)."""
    _, depth, _ = sizes(rank)
    first, end = (place * depth // rank.count for place in (rank.index, rank.index + 1))
    is_last = rank.index == rank.count - 1
    mine = [make(rank, number) for number in range(first, end + is_last)]
    optimizer = trainer(rank, mine)
    for step in range(rank.steps):
        passed = [stage(rank, mine, piece) for piece in batch(rank, step)]
        total = sum(outputs.detach() for _, outputs in passed) if is_last else None
        while passed:
            go_back(rank, *passed.pop(0))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        rank.mark(total)


def stage(rank: Rank, mine: Weights, piece: Any) -> tuple[Any, Any]:
    """Take a micro-batch through this rank's layers; returns what came in and what comes out."""
    torch, group = rank.torch, rank.torch.distributed
    if rank.index > 0:
        piece = torch.empty_like(piece)
        group.recv(piece, rank.index - 1)
        piece.requires_grad_()
    outputs = piece
    for weights in mine:
        outputs = apply(torch, weights, outputs)
    if rank.index == rank.count - 1:
        outputs = loss_of(outputs)
    else:
        group.send(outputs.detach(), rank.index + 1)
    return piece, outputs


def go_back(rank: Rank, piece: Any, outputs: Any) -> None:
    """Take a micro-batch's gradients through this rank's layers."""
    group = rank.torch.distributed
    if rank.index == rank.count - 1:
        outputs.backward()
    else:
        gradient = rank.torch.empty_like(outputs)
        group.recv(gradient, rank.index + 1)
        outputs.backward(gradient)
    if rank.index > 0:
        group.send(piece.grad, rank.index - 1)


# --- tensor parallel ------------------------------------------------------------------------------


def tensor_parallel(rank: Rank) -> None:
    """A part of each layer on every rank: its columns, or its rows where columns came in."""
    _, depth, _ = sizes(rank)
    spread, add, join = ends(rank)

    def part(each: Any, dimension: int) -> Any:
        return each.chunk(rank.count, dimension)[rank.index]

    mine = [make(rank, number, part) for number in range(depth + 1)]

    def forward(inputs: Any) -> Any:
        for up, down in mine[:-1]:
            hidden = rank.torch.nn.functional.gelu(spread(inputs) @ up.t())
            inputs = inputs + add(hidden @ down.t())
        return join(spread(inputs) @ mine[-1][0].t())

    train(rank, mine, forward)


def ends(rank: Rank) -> tuple[Any, Any, Any]:
    """Return how a tensor gets into the parts of a layer, and out of them as a sum or side by side.

    Each is the other's way back: gradients are added where a tensor was spread.
    """
    torch, group = rank.torch, rank.torch.distributed

    def added(tensor: Any) -> Any:
        total = tensor.clone(memory_format=torch.contiguous_format)
        group.all_reduce(total)
        return total

    def joined(tensor: Any) -> Any:
        parts = [torch.empty_like(tensor) for _ in range(rank.count)]
        group.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim=1)

    def function(there: Any, back: Any) -> Any:
        class Function(torch.autograd.Function):  # type: ignore[misc,name-defined]
            @staticmethod
            def forward(_context: Any, tensor: Any) -> Any:
                return there(tensor)

            @staticmethod
            def backward(_context: Any, gradient: Any) -> Any:
                return back(gradient)

        return Function.apply

    def same(tensor: Any) -> Any:
        return tensor.view_as(tensor)

    def own(tensor: Any) -> Any:
        return tensor.chunk(rank.count, dim=1)[rank.index].contiguous()

    return function(same, added), function(added, same), function(joined, own)


PROGRAMS = (
    Program(pipeline, 10, is_alike=False, alone=whole),
    Program(tensor_parallel, 10, alone=whole),
)
