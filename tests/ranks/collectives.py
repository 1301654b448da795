"""Programs for tests/test_ranks.py on GPUs: what NCCL and symmetric memory make of our memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from benchmarks.ranks.program import Program, Rank

MIB = 1 << 20
COUNT = 3 * MIB  # numbers of four bytes: several chunks

Make = Callable[[int], Any]


def base(rank: Rank, count: int) -> Any:
    """Numbers that a sum over ranks keeps exact."""
    return (rank.torch.arange(count, device=rank.device) % 251).float()


def plain(rank: Rank) -> Make:
    """Make tensors as any program does."""
    return lambda count: rank.torch.empty(count, dtype=rank.torch.float32, device=rank.device)


def exchange(rank: Rank, make: Make, tensor: Any = None) -> None:
    """Run each kind of collective on memory that `make` gives, and look at every number."""
    torch, group = rank.torch, rank.torch.distributed
    tensor = make(COUNT) if tensor is None else tensor
    numbers = base(rank, tensor.numel())
    mine = numbers + rank.index
    others = range(rank.count)

    def check(name: str, got: Any, expected: Any) -> None:
        assert torch.equal(got, expected), (name, (got != expected).sum().item(), got.numel())

    tensor.copy_(mine)
    group.all_reduce(tensor)
    check("all_reduce", tensor, rank.count * numbers + sum(others))
    tensor.copy_(mine)
    gathered = make(rank.count * tensor.numel())
    group.all_gather_into_tensor(gathered, tensor)
    check("all_gather", gathered, torch.cat([numbers + other for other in others]))
    part = make(tensor.numel())
    group.reduce_scatter_tensor(part, gathered)
    check("reduce_scatter", part, rank.count * mine)
    group.broadcast(tensor, rank.count - 1)
    check("broadcast", tensor, numbers + rank.count - 1)
    following, preceding = (rank.index + 1) % rank.count, (rank.index - 1) % rank.count
    tensor.copy_(mine)
    for work in group.batch_isend_irecv(
        [group.P2POp(group.isend, tensor, following), group.P2POp(group.irecv, part, preceding)]
    ):
        work.wait()
    check("send", part, numbers + preceding)
    rank.synchronize()


def moved_chunks(rank: Rank) -> int | None:
    """How many chunks of ours have moved; None with another allocator."""
    import gpumem_alloc

    return gpumem_alloc.stats(rank.device)["moved_chunks"] if gpumem_alloc.is_enabled() else None


def moved(rank: Rank) -> None:
    """Collectives on memory whose chunks lay elsewhere in an earlier collective."""
    torch = rank.torch
    before = moved_chunks(rank)
    for _ in range(4):
        exchange(rank, plain(rank))
        kept = [plain(rank)(MIB) for _ in range(24)]
        for tensor in kept[:2]:
            exchange(rank, plain(rank), tensor)
        del kept[::2], tensor
        large = plain(rank)(11 * MIB)
        exchange(rank, plain(rank), large)
        exchange(rank, plain(rank), kept[0])
        del large, kept
        torch.cuda.empty_cache()
        exchange(rank, plain(rank))
    after = moved_chunks(rank)
    rank.noted["moved_chunks"] = after
    assert before is None or (after is not None and after > before), "nothing has moved"


def not_registered(rank: Rank) -> None:
    """The setting that would have NCCL keep old pages is gone with ours."""
    import gpumem_alloc

    left = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK" in os.environ
    assert left is not gpumem_alloc.is_enabled()
    moved(rank)


def registered_pools(rank: Rank) -> None:
    """A pool of NCCL's own memory and a plain one, registered, used, grown, and let go."""
    torch = rank.torch
    backend = torch.distributed.group.WORLD._get_backend(rank.device)
    for name, arguments in (("nccl", (backend.mem_allocator,)), ("plain", ())):
        pool = torch.cuda.MemPool(*arguments)

        def make(count: int, pool: Any = pool) -> Any:
            with torch.cuda.use_mem_pool(pool):
                return plain(rank)(count)

        first = make(COUNT)
        backend.register_mem_pool(pool)
        exchange(rank, make, first)
        exchange(rank, make, make(5 * COUNT))
        rank.synchronize()
        try:
            backend.deregister_mem_pool(pool)
            rank.noted[f"deregister {name}"] = "yes"
        except RuntimeError as error:  # told, and compared with native
            rank.noted[f"deregister {name}"] = str(error).splitlines()[0][:200]
        del first, pool, make
        exchange(rank, plain(rank))


def symmetric(rank: Rank) -> None:
    """Symmetric memory beside ours: another rank's buffer is read, and added without NCCL."""
    import torch.distributed._symmetric_memory as symmetric_memory

    torch = rank.torch
    name = torch.distributed.group.WORLD.group_name
    tensor = symmetric_memory.empty(COUNT, dtype=torch.float32, device=rank.device)
    handle = symmetric_memory.rendezvous(tensor, name)
    rank.noted["multicast"] = bool(handle.multicast_ptr)
    assert not handle.multicast_ptr, "NVLink multicast must stay off"
    numbers = base(rank, COUNT)
    tensor.copy_(numbers + rank.index)
    handle.barrier()
    other = (rank.index + 1) % rank.count
    there = handle.get_buffer(other, (COUNT,), torch.float32)
    assert torch.equal(there, numbers + other)
    handle.barrier()
    added = torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", name)
    assert torch.equal(added, rank.count * numbers + sum(range(rank.count)))
    exchange(rank, plain(rank), tensor)
    rank.synchronize()


def symmetric_pool(rank: Rank) -> None:
    """The same through PyTorch's pool of symmetric memory."""
    import torch.distributed._symmetric_memory as symmetric_memory

    torch = rank.torch
    name = torch.distributed.group.WORLD.group_name
    pool = symmetric_memory.get_mem_pool(rank.device)
    with torch.cuda.use_mem_pool(pool):
        tensor = plain(rank)(COUNT)
    handle = symmetric_memory.rendezvous(tensor, name)
    assert not handle.multicast_ptr, "NVLink multicast must stay off"
    numbers = base(rank, COUNT)
    tensor.copy_(numbers + rank.index)
    handle.barrier()
    added = torch.ops.symm_mem.one_shot_all_reduce(tensor, "sum", name)
    assert torch.equal(added, rank.count * numbers + sum(range(rank.count)))
    rank.synchronize()


MOVED = Program(moved, 1)
NOT_REGISTERED = Program(not_registered, 1)
REGISTERED_POOLS = Program(registered_pools, 1)
SYMMETRIC = Program(symmetric, 1)
SYMMETRIC_POOL = Program(symmetric_pool, 1)
