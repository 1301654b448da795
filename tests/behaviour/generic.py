"""Tensors keep their contents, memory is used again and given back."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.behaviour.table import behaviour
from tests.behaviour.tools import KIB, MIB, empty, filled, holds, torch
from tests.rig import inside


@behaviour()
def tensors_keep_their_contents() -> None:
    sizes = (1, 511, 512, 513, 100_000, MIB, MIB + 1, 10 * MIB, 33 * MIB)
    tensors = [filled(size, number) for number, size in enumerate(sizes)]
    assert all(holds(tensor, number) for number, tensor in enumerate(tensors))


@behaviour()
def addresses_are_multiples_of_512() -> None:
    tensors = [empty(size) for size in (1, 2, 100, 513, 4097, 70_000, MIB, 3 * MIB + 1)]
    assert [tensor.data_ptr() % 512 for tensor in tensors] == [0] * len(tensors)


@behaviour()
def freed_memory_is_used_again() -> None:
    for size in (100, 5 * KIB, 100 * KIB, 3 * MIB, 40 * MIB):
        tensor = empty(size)
        place = tensor.data_ptr()
        del tensor
        assert empty(size).data_ptr() == place, size


@behaviour()
def a_loop_reserves_no_more_from_its_second_round_on() -> None:
    reserved = []
    for _ in range(6):
        tensors = [empty(size) for size in (700, 2 * MIB, 5 * MIB, 30 * MIB, 12 * KIB)]
        del tensors
        reserved.append(torch.cuda.memory_reserved())
    assert len(set(reserved[1:])) == 1, reserved


@behaviour()
def live_tensors_never_overlap() -> None:
    choice = random.Random(7)
    live: list[tuple[int, Any]] = []
    for step in range(200):
        if live and choice.random() < 0.48:
            value, tensor = live.pop(choice.randrange(len(live)))
            assert holds(tensor, value), step
        else:
            size = choice.choice((1, 600, 5000, 70_000, 900_000, 3_000_000)) + choice.randrange(99)
            live.append((step % 251, filled(size, step % 251)))
        if step % 50 == 49:
            torch.cuda.empty_cache()
    assert all(holds(tensor, value) for value, tensor in live)


@behaviour()
def no_bytes_are_no_block() -> None:
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    tensors = [empty(0), torch.empty((3, 0, 5), device="cuda")]
    assert [tensor.data_ptr() for tensor in tensors] == [0, 0]
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@behaviour()
def a_storage_resized_to_nothing_gives_its_memory_back() -> None:
    tensor = empty(3 * MIB)
    before = torch.cuda.memory_allocated()
    tensor.untyped_storage().resize_(0)
    assert torch.cuda.memory_allocated() == before - 3 * MIB
    tensor.untyped_storage().resize_(3 * MIB)
    assert torch.cuda.memory_allocated() == before


@behaviour()
def a_view_keeps_the_whole_storage() -> None:
    tensor = empty(8 * MIB)
    before = torch.cuda.memory_allocated()
    view = tensor[5 * MIB : 5 * MIB + 1]
    del tensor
    assert torch.cuda.memory_allocated() == before
    del view
    assert torch.cuda.memory_allocated() == before - 8 * MIB


@behaviour()
def empty_cache_gives_memory_back_to_the_card() -> None:
    kept = filled(3 * MIB, 9)
    before = torch.cuda.memory_reserved()
    used = inside.card_used_bytes()
    tensors = [empty(64 * MIB) for _ in range(3)]
    assert inside.card_used_bytes() >= used + 3 * 64 * MIB
    del tensors
    assert torch.cuda.memory_reserved() >= before + 3 * 64 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before
    assert inside.card_used_bytes() <= used + inside.CARD_NOISE_BYTES
    assert holds(kept, 9)


@behaviour()
def with_nothing_live_empty_cache_leaves_nothing_reserved() -> None:
    assert torch.cuda.memory_allocated() == 0
    tensors = [empty(size) for size in (1, 5000, MIB, 30 * MIB)]
    del tensors
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


@behaviour()
def mem_get_info_sees_what_is_reserved() -> None:
    free, total = torch.cuda.mem_get_info()
    tensor = empty(256 * MIB)
    free_now, total_now = torch.cuda.mem_get_info()
    assert total_now == total == torch.cuda.get_device_properties(0).total_memory
    assert free - free_now >= 256 * MIB - inside.CARD_NOISE_BYTES
    del tensor


@behaviour()
def threads_allocate_and_free_beside_each_other() -> None:
    wrong: list[object] = []

    def work(value: int) -> None:
        try:
            choice = random.Random(value)
            for _ in range(60):
                tensors = [filled(choice.choice((300, 9000, 400_000)), value) for _ in range(3)]
                if not all(holds(tensor, value) for tensor in tensors):
                    wrong.append(value)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(value,)) for value in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@behaviour()
def what_one_thread_allocates_another_may_free() -> None:
    before = torch.cuda.memory_allocated()
    with ThreadPoolExecutor(1) as pool:
        tensors = pool.submit(lambda: [filled(size, 3) for size in (100, 50_000, 5 * MIB)]).result()
        assert all(holds(tensor, 3) for tensor in tensors)
        assert torch.cuda.memory_allocated() > before
        del tensors
        assert torch.cuda.memory_allocated() == before
        tensors = [filled(size, 4) for size in (100, 50_000, 5 * MIB)]
        pool.submit(tensors.clear).result()
    assert torch.cuda.memory_allocated() == before


@behaviour()
def pinned_memory_copies_both_ways() -> None:
    source = torch.full((10 * MIB,), 7, dtype=torch.uint8).pin_memory()
    there = source.to("cuda", non_blocking=True)
    back = torch.empty(10 * MIB, dtype=torch.uint8, pin_memory=True)
    back.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert back.is_pinned()
    assert torch.equal(source, back)


@behaviour()
def a_tensor_saved_and_loaded_is_the_same() -> None:
    import io

    tensor, file = filled(100_000, 5), io.BytesIO()
    torch.save([tensor, tensor[10:20]], file)
    file.seek(0)
    whole, part = torch.load(file)
    assert whole.is_cuda
    assert holds(whole, 5)
    assert part.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


@behaviour(alone=True)
def the_first_use_of_the_card_imports_no_compiler() -> None:
    import sys

    empty(100)
    assert "triton" not in sys.modules


@behaviour(gpu=True)
def matmul_uses_the_same_memory_expanded_or_not() -> None:
    def peak(call: Any) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)

    a = torch.rand(1, 32, 32, device="cuda")
    b = torch.rand(24, 32, 1, device="cuda")
    torch.matmul(a, b)  # workspaces
    whole = a.expand(24, 32, 32)
    assert peak(lambda: torch.matmul(a, b)) == peak(lambda: torch.matmul(whole, b))
    assert peak(lambda: torch.bmm(whole, b)) == peak(lambda: torch.matmul(a, b))


@behaviour(gpu=True)
def cublas_takes_its_workspace_from_the_allocator() -> None:
    a = torch.randn(7, 7, device="cuda")
    a @ a
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    a @ a
    assert torch.cuda.memory_allocated() >= before + MIB
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() <= before


@behaviour(gpu=True)
def autocast_caches_no_weights_without_gradients() -> None:
    linear = torch.nn.Linear(10, 10).cuda()
    data = torch.randn(1, 10, device="cuda")
    with torch.autocast("cuda"), torch.no_grad():
        linear(data)
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            linear(data)
        assert torch.cuda.memory_allocated() == before


@behaviour(gpu=True)
def kernels_write_where_their_tensors_are() -> None:
    choice = random.Random(123)
    live: list[tuple[int, Any]] = []
    for step in range(2000):
        if live and (len(live) > 12 or choice.random() < 0.5):
            value, tensor = live.pop(choice.randrange(len(live)))
            assert bool((tensor == value).all()), step
        else:
            size = choice.randrange(MIB // 2, 5 * MIB)
            live.append((step, torch.full((size,), step, dtype=torch.int32, device="cuda")))
        if choice.random() < 0.02:
            torch.cuda.empty_cache()


@behaviour(gpu=True)
def a_training_step_gives_the_same_result_twice() -> None:
    def train() -> Any:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
        ).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        data = torch.randn(32, 64, device="cuda")
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
        return loss.detach().cpu()

    assert torch.equal(train(), train())


@behaviour(gpu=True)
def gradient_checkpointing_holds_less_at_its_peak() -> None:
    from torch.utils.checkpoint import checkpoint

    blocks = [
        torch.nn.Sequential(
            *(torch.nn.Linear(512, 512), torch.nn.GELU()),
            *(torch.nn.Linear(512, 512), torch.nn.GELU()),
        ).cuda()
        for _ in range(6)
    ]

    def peak(save: bool) -> int:
        data = torch.randn(4096, 512, device="cuda", requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        value = data
        for block in blocks:
            value = block(value) if save else checkpoint(block, value, use_reentrant=False)
        value.sum().backward()
        for block in blocks:
            block.zero_grad(set_to_none=True)
        return int(torch.cuda.max_memory_allocated())

    peak(True)
    assert peak(False) < peak(True)
