"""CUDA tensors sent to other processes, through torch.multiprocessing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.behaviour import worker
from tests.behaviour.table import behaviour
from tests.behaviour.tools import KIB, MIB, empty, filled, holds, raised, torch
from tests.rig import inside


def _child(work: Callable[..., None], arguments: tuple[Any, ...], errors: Any) -> None:
    """What the other process runs: `work`, with the same allocator as here."""
    try:
        worker.use(os.environ["GMA_BEHAVIOUR_ALLOCATOR"])
        work(*arguments)
        errors.put("")
    except BaseException as error:
        errors.put(f"{type(error).__name__}: {error}")
    torch.cuda.synchronize()


class _Other:
    """Another process at work, with a queue to it and one from it."""

    def __init__(self, work: Callable[..., None]) -> None:
        import torch.multiprocessing as processes

        # Where processes are many and cards are none, a fork before the first use of the card does.
        context = processes.get_context("fork" if inside.ON_RIG else "spawn")
        self.there, self.back, self.errors = context.Queue(), context.Queue(), context.Queue()
        self.process = context.Process(
            target=_child, args=(work, (self.there, self.back), self.errors)
        )
        self.process.start()

    def end(self) -> None:
        """Wait for it; it must have ended well."""
        wrong = self.errors.get(timeout=60)
        self.process.join(60)
        assert not wrong, wrong
        assert self.process.exitcode == 0


def _check_values(there: Any, back: Any) -> None:
    while (got := there.get()) is not None:
        value, tensor = got
        back.put(holds(tensor, value))
        del tensor, got


def _write_two(there: Any, back: Any) -> None:
    tensor = there.get()
    tensor.copy_(torch.full(tensor.shape, 2, dtype=torch.uint8))
    torch.cuda.synchronize()
    del tensor
    back.put("done")


def _keep_until_told(there: Any, back: Any) -> None:
    tensor = there.get()
    back.put("got it")
    there.get()
    assert holds(tensor, 5)
    del tensor
    torch.cuda.ipc_collect()
    back.put("let go")


def _send_back(there: Any, back: Any) -> None:
    tensor = filled(3 * MIB, 8)
    back.put(tensor)
    assert there.get() == "copied"


def _resend(there: Any, back: Any) -> None:
    tensor = there.get()
    back.put(raised(RuntimeError, tensor.untyped_storage()._share_cuda_))
    del tensor


def _place(there: Any, back: Any) -> None:
    first, second = there.get(), there.get()
    first[:1].copy_(torch.tensor([77], dtype=torch.uint8))
    torch.cuda.synchronize()
    places = {tensor.untyped_storage().data_ptr() for tensor in (first, second)}
    back.put((len(places), int(second[0])))
    del first, second


def _learn(there: Any, back: Any) -> None:
    model = there.get()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.full(parameter.shape, 2.0))
    torch.cuda.synchronize()
    back.put("done")
    there.get()
    del model


@behaviour(alone=True)
def the_other_process_sees_the_contents() -> None:
    other = _Other(_check_values)
    for value, size in enumerate((1, 1000, 70 * KIB, MIB, 5 * MIB, 64 * MIB), start=1):
        tensor = filled(size, value)
        other.there.put((value, tensor))
        assert other.back.get(timeout=60), size
        del tensor
    other.there.put(None)
    other.end()


@behaviour(alone=True)
def a_piece_of_a_block_arrives_as_that_piece() -> None:
    other = _Other(_check_values)
    whole = torch.cat([torch.full((4097,), v, dtype=torch.uint8) for v in range(10)]).cuda()
    neighbours = [filled(700, 100 + number) for number in range(20)]
    other.there.put((3, whole[3 * 4097 : 4 * 4097]))
    assert other.back.get(timeout=60)
    for number in (0, 7, 19):
        other.there.put((100 + number, neighbours[number]))
        assert other.back.get(timeout=60)
    other.there.put(None)
    other.end()


@behaviour(alone=True)
def what_the_other_process_writes_is_seen_here() -> None:
    other = _Other(_write_two)
    tensor, beside = filled(3 * MIB, 1), filled(3 * MIB, 50)
    other.there.put(tensor)
    assert other.back.get(timeout=60) == "done"
    assert holds(tensor, 2)
    assert holds(beside, 50)
    other.end()


@behaviour(alone=True)
def memory_freed_here_stays_while_the_other_uses_it() -> None:
    other = _Other(_keep_until_told)
    tensor = filled(3 * MIB, 5)
    place = tensor.data_ptr()
    other.there.put(tensor)
    assert other.back.get(timeout=60) == "got it"
    del tensor
    torch.cuda.empty_cache()
    noise = [filled(3 * MIB, 9) for _ in range(20)]
    assert place not in [tensor.data_ptr() for tensor in noise]
    other.there.put("let go")
    assert other.back.get(timeout=60) == "let go"
    other.end()
    torch.cuda.ipc_collect()
    del noise
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0


@behaviour(alone=True)
def a_tensor_comes_from_the_other_process() -> None:
    other = _Other(_send_back)
    tensor = other.back.get(timeout=60)
    assert tensor.is_cuda
    assert holds(tensor, 8)
    mine = tensor.clone()
    del tensor
    other.there.put("copied")
    other.end()
    assert holds(mine, 8)


@behaviour(alone=True)
def what_was_received_is_not_sent_on() -> None:
    other = _Other(_resend)
    tensor = filled(3 * MIB, 5)
    other.there.put(tensor)
    text = other.back.get(timeout=60)
    assert "received from another process" in text, text
    other.end()


@behaviour(alone=True)
def one_storage_sent_twice_is_one_storage_there() -> None:
    other = _Other(_place)
    tensor = filled(3 * MIB, 5)
    other.there.put(tensor)
    other.there.put(tensor)
    assert other.back.get(timeout=60) == (1, 77)
    other.end()


@behaviour(alone=True)
def many_tensors_leave_nothing_behind() -> None:
    other = _Other(_check_values)
    allocated = torch.cuda.memory_allocated()
    opened = []
    for round_number in range(40):
        tensor = filled(3 * MIB, round_number)
        other.there.put((round_number, tensor))
        assert other.back.get(timeout=60)
        del tensor
        torch.cuda.ipc_collect()
        opened.append(len(list(Path("/proc/self/fd").iterdir())))
    other.there.put(None)
    other.end()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() == allocated
    assert max(opened[20:]) <= max(opened[:20]) + 2, opened


@behaviour(alone=True)
def nothing_of_a_cuda_tensor_lies_in_shared_memory_afterwards() -> None:
    shared = Path("/dev/shm")
    before = {path.name for path in shared.iterdir()}
    other = _Other(_check_values)
    tensor = filled(64 * MIB, 6)
    other.there.put((6, tensor))
    assert other.back.get(timeout=60)
    large = [
        path.name
        for path in shared.iterdir()
        if path.name not in before and path.stat().st_size >= MIB
    ]
    assert large == []
    del tensor
    other.there.put(None)
    other.end()


@behaviour(alone=True)
def a_models_parameters_are_shared() -> None:
    other = _Other(_learn)
    model = torch.nn.Linear(16, 16).cuda().share_memory()
    other.there.put(model)
    assert other.back.get(timeout=60) == "done"
    assert all(bool((parameter.cpu() == 2.0).all()) for parameter in model.parameters())
    other.there.put("end")
    other.end()


@behaviour(alone=True)
def two_receivers_share_one_tensor() -> None:
    others = [_Other(_keep_until_told), _Other(_keep_until_told)]
    tensor = filled(3 * MIB, 5)
    for other in others:
        other.there.put(tensor)
        assert other.back.get(timeout=60) == "got it"
    for other in others:
        other.there.put("let go")
        assert other.back.get(timeout=60) == "let go"
        other.end()
    assert holds(tensor, 5)


@behaviour(alone=True)
def a_handle_says_where_in_its_allocation_a_tensor_lies() -> None:
    tensors = [empty(70 * KIB) for _ in range(3)]
    shared = [tensor.untyped_storage()._share_cuda_() for tensor in tensors]
    assert len({(bytes(one[1]), one[3]) for one in shared}) == 3
    assert [one[2] for one in shared] == [70 * KIB] * 3
