"""change_current_allocator and its neighbours, by PyTorch's own names."""

from __future__ import annotations

from tests.behaviour.own_allocator import Own
from tests.behaviour.table import behaviour
from tests.behaviour.tools import MIB, empty, filled, holds, raised, torch


@behaviour(alone=True)
def once_the_card_is_used_the_allocator_stays() -> None:
    tensor = filled(MIB, 3)
    text = raised(RuntimeError, lambda: torch.cuda.memory.change_current_allocator(Own().wrapper))
    assert "Can't swap an already initialized allocator" in text
    assert holds(tensor, 3)


@behaviour(alone=True)
def an_allocator_asked_for_by_name_is_one_object() -> None:
    empty(100)
    one = torch.cuda.memory._get_current_allocator()
    two = torch.cuda.memory._get_current_allocator()
    assert type(one) is type(two)
    assert one.allocator() is two.allocator()


@behaviour(alone=True)
def asking_for_it_starts_nothing() -> None:
    torch.cuda.memory._get_current_allocator()
    torch.cuda.get_allocator_backend()
    assert not torch.cuda.is_initialized()


@behaviour(alone=True)
def a_forked_child_may_not_use_the_parents_card() -> None:
    import os

    tensor = filled(MIB, 3)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            empty(100)
            text = "no error"
        except RuntimeError as error:
            text = str(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    text = os.read(reading, 10_000).decode()
    assert os.waitpid(child, 0)[1] == 0
    assert "Cannot re-initialize CUDA in forked subprocess" in text, text
    assert holds(tensor, 3)


@behaviour(alone=True)
def a_child_forked_before_the_first_use_has_a_card_of_its_own() -> None:
    import os

    child = os.fork()
    if child == 0:
        ok = holds(filled(MIB, 3), 3) and torch.cuda.memory_allocated() == 0
        os._exit(0 if ok else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert holds(filled(MIB, 4), 4)


@behaviour(alone=True)
def worker_processes_with_host_tensors_are_not_disturbed() -> None:
    kept = filled(MIB, 3)
    data = torch.utils.data.TensorDataset(torch.arange(64))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, pin_memory=True)
    total = sum(int(batch[0].cuda().cpu().sum()) for batch in loader)
    assert total == 64 * 63 // 2
    assert holds(kept, 3)
