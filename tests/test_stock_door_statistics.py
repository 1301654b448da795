"""torch.cuda's memory functions answer, and tell the truth."""

from __future__ import annotations

import json

import pytest

from tests.rig.machine import Machine

pytestmark = pytest.mark.torch

STATISTICS = """
    import json, torch
    {swap}
    before = torch.cuda.memory_stats()
    x = torch.ones(1000).cuda()
    print(json.dumps([sorted(before), sorted(torch.cuda.memory_stats()),
                      sorted(torch.accelerator.memory_stats()),
                      sorted(torch.cuda.memory._snapshot()),
                      sorted(torch.cuda.memory_snapshot()[0]),
                      sorted(torch.cuda.memory_snapshot()[0]["blocks"][0])]))
"""


def test_keys_are_exactly_torchs(machine: Machine) -> None:
    native = json.loads(machine.run(STATISTICS.format(swap="")).stdout)
    swap = "import gpumem_alloc; gpumem_alloc.enable()"
    ours = json.loads(machine.run(STATISTICS.format(swap=swap)).stdout)
    assert ours == native


def test_numbers_follow_allocations(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        cuda = torch.cuda
        assert cuda.memory_allocated() == cuda.memory_reserved() == 0
        a = torch.empty(1000, dtype=torch.uint8, device="cuda")
        b = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
        assert cuda.memory_allocated() == 1024 + (5 << 20)
        assert cuda.memory_stats()["requested_bytes.all.current"] == 1000 + (5 << 20)
        assert cuda.memory_stats()["allocation.small_pool.current"] == 1
        assert cuda.memory_stats()["allocation.large_pool.current"] == 1
        assert cuda.memory_reserved() >= cuda.memory_allocated()
        del b
        assert cuda.memory_allocated() == 1024
        assert cuda.max_memory_allocated() == 1024 + (5 << 20)
        assert cuda.max_memory_reserved() >= cuda.max_memory_allocated()
        cuda.reset_peak_memory_stats()
        assert cuda.max_memory_allocated() == 1024
        cuda.reset_accumulated_memory_stats()
        assert cuda.memory_stats()["allocated_bytes.all.allocated"] == 0
        c = torch.empty(512, dtype=torch.uint8, device="cuda")
        assert cuda.memory_stats()["allocated_bytes.all.allocated"] == 512
        assert "1536 B" in cuda.memory_summary()
        assert gpumem_alloc.stats()["allocated_bytes.all.current"] == 1536
        del a, c
        cuda.empty_cache()
        assert cuda.memory_allocated() == cuda.memory_reserved() == 0
    """)


def test_reserved_equals_what_the_card_gave_after_each_of_100_steps(machine: Machine) -> None:
    machine.run("""
        import random, torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        torch.cuda.init(); x = torch.empty(1, device="cuda"); torch.cuda.synchronize()
        base = inside.card_used_bytes() - torch.cuda.memory_reserved()
        rng, live = random.Random(1), []
        for step in range(100):
            if live and rng.random() < 0.45:
                live.pop(rng.randrange(len(live)))
            else:
                size = int(2 ** rng.uniform(9, 27))
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            if step % 20 == 19:
                torch.cuda.empty_cache()
            difference = inside.card_used_bytes() - base - torch.cuda.memory_reserved()
            assert abs(difference) <= inside.CARD_NOISE_BYTES, (step, difference)
        gpumem_alloc.audit()
    """)


def test_snapshot_blocks_tile_their_segments(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        keep = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (100, 3 << 20, 70 << 20)]
        dropped = torch.empty(9 << 20, dtype=torch.uint8, device="cuda")
        keep.append(torch.empty(5 << 20, dtype=torch.uint8, device="cuda"))
        del dropped
        allocated = active = total = 0
        for segment in torch.cuda.memory_snapshot():
            at = segment["address"]
            for block in segment["blocks"]:
                assert block["address"] == at
                at += block["size"]
                if block["state"] == "active_allocated":
                    allocated += block["size"]
            assert at == segment["address"] + segment["total_size"]
            total += segment["total_size"]
        assert allocated == torch.cuda.memory_allocated()
        assert total <= torch.cuda.memory_reserved()
    """)


def test_torch_accelerator_agrees(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        x = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
        assert torch.accelerator.memory_allocated() == 5 << 20
        del x
        assert torch.accelerator.max_memory_allocated() == 5 << 20
        torch.accelerator.reset_peak_memory_stats()
        assert torch.accelerator.max_memory_allocated() == 0
        torch.accelerator.empty_cache()
        assert torch.accelerator.memory_reserved() == 0
    """)


def test_without_the_swap_torchs_own_answers_stay(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        ours = gpumem_alloc.allocator()  # made, and not put in
        x = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 20 << 20
        assert gpumem_alloc.stats()["allocated_bytes.all.current"] == 0
        assert torch.cuda.memory_snapshot()[0]["total_size"] == 20 << 20
    """)


def test_history_says_why_it_cannot_be_recorded(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        x = torch.ones(9).cuda()
        text = inside.raised(RuntimeError, torch.cuda.memory._record_memory_history)
        assert "no hook" in text and "cudagraph_trees" in text, text
        torch.cuda.memory._record_memory_history(None)
    """)


def test_what_the_bridge_alone_has_is_refused_in_three_lines(machine: Machine) -> None:
    machine.run("""
        import io, torch, gpumem_alloc, inside
        from multiprocessing.reduction import ForkingPickler
        import torch.multiprocessing
        gpumem_alloc.enable()
        x = torch.ones(9).cuda()
        for what, refused in (
            ("MemPool", torch.cuda.MemPool),
            ("send", lambda: ForkingPickler(io.BytesIO()).dump(x)),
            ("take", lambda: torch.UntypedStorage._new_shared_cuda(0, b"", 0, 0, b"", 0, b"", 0)),
            ("observer", lambda: torch._C._cuda_attach_out_of_memory_observer(print)),
        ):
            text = inside.raised(gpumem_alloc.AllocatorError, refused)
            happened, _, do = text.split("\\n")
            assert what in happened and "no hook" in happened, text
            assert "Take the bridge" in do and "bridge status" in do, text
        gpumem_alloc.audit()
    """)


def test_a_device_that_is_not_there_is_refused_in_three_lines(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc, inside
        text = inside.raised(gpumem_alloc.AllocatorError, lambda: gpumem_alloc.stats(-1))
        assert "no device -1" in text, text
        gpumem_alloc.enable()
        x = torch.ones(9).cuda()
        for call in (
            lambda: gpumem_alloc.stats(99),
            lambda: gpumem_alloc.trim(device="cuda:99"),
            lambda: gpumem_alloc.reserve(1, device=99),
            lambda: gpumem_alloc.set_limit("1GiB", device=99),
        ):
            text = inside.raised(gpumem_alloc.AllocatorError, call)
            assert text.startswith("there is no device 99.\\n"), text
            assert text.count("\\n") == 2, text
    """)


def test_statistics_of_each_device_are_its_own(rig: Machine) -> None:
    rig.run(
        """
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        a = torch.ones(1000, device="cpu").to("cuda:0")
        b = torch.ones(3 << 20, device="cpu").to("cuda:1")
        assert torch.cuda.memory_allocated(0) == 4096
        assert torch.cuda.memory_allocated(1) == 12 << 20
        assert gpumem_alloc.stats("cuda:1")["allocated_bytes.all.current"] == 12 << 20
        gpumem_alloc.set_limit("64MiB", device=1)
        try:
            torch.empty(100 << 20, dtype=torch.uint8, device="cuda:1")
            raise AssertionError("the limit of device 1 does not hold")
        except torch.OutOfMemoryError as error:
            assert "GPU 1" in str(error)
        c = torch.empty(100 << 20, dtype=torch.uint8, device="cuda:0")
        gpumem_alloc.audit()
        """,
        env={"RIG_DEVICES": "2"},
    )
