"""Running out of memory, limits, and giving memory back, as PyTorch's users see them."""

from __future__ import annotations

import pytest

from gpumem_alloc import _C
from tests.rig.machine import Machine

pytestmark = pytest.mark.torch

CARD = {"RIG_CAPACITY_MB": "1024"}
# Of PyTorch, and our own. The text of an out-of-memory error advises none of them.
SETTINGS = ["expandable_segments", "PYTORCH_", "GPUMEM_ALLOC_CONF"]
SETTINGS += [row["name"] for row in _C.option_table()]


@pytest.mark.parametrize("path", ["Automatic", "Constructor", "BaseAndTable"])
def test_out_of_memory_is_torchs_error_on_every_path(machine: Machine, path: str) -> None:
    run = machine.run(
        f"""
        import torch, gpumem_alloc
        from gpumem_alloc import _C
        _C.set_raise_path(_C.RaisePath.{path})
        gpumem_alloc.enable(limit_mb=512)
        x = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        for _ in range(3):
            try:
                torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
                raise AssertionError("no error")
            except torch.OutOfMemoryError as error:
                assert type(error) is torch.cuda.OutOfMemoryError and len(error.args) == 1
                text = str(error)
        print(text)
        y = torch.arange(1000).cuda()  # everything works afterwards
        assert y.cpu().sum() == 499500
        assert gpumem_alloc.stats()["num_ooms"] == 3
        gpumem_alloc.audit()
        """,
        env=CARD,
    )
    text = run.stdout
    assert text.startswith("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ")
    for part in ("free", "512.00 MiB", "300.00 MiB", "largest"):  # free, limit, live, largest piece
        assert part in text, (part, text)
    for setting in SETTINGS:  # what is on already helps nobody
        assert setting not in text, (setting, text)


def test_without_torchs_symbols_it_is_still_an_error(rig: Machine) -> None:
    rig.run("""
        import torch, gpumem_alloc, inside
        from gpumem_alloc import _C
        _C.set_raise_path(_C.RaisePath.BadAlloc)
        gpumem_alloc.enable()
        big = lambda: torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
        assert "bad_alloc" in inside.raised(RuntimeError, big)
    """)


def test_batch_size_finders_recognise_it(machine: Machine) -> None:
    machine.run(
        """
        import torch, gpumem_alloc

        def accelerate_sees(error):  # accelerate.utils.memory.should_reduce_batch_size
            return isinstance(error, RuntimeError) and len(error.args) == 1 and (
                "CUDA out of memory." in error.args[0])

        def lightning_sees(error):  # lightning.pytorch.utilities.memory.is_cuda_out_of_memory
            return isinstance(error, RuntimeError) and len(error.args) == 1 and (
                "CUDA" in error.args[0] and "out of memory" in error.args[0])

        gpumem_alloc.enable(limit_mb=512)
        batch, tried = 1 << 30, []
        while batch:
            try:
                torch.empty(batch, dtype=torch.uint8, device="cuda")
                break
            except Exception as error:
                assert accelerate_sees(error) and lightning_sees(error), error
                tried.append(batch)
                batch //= 2
        assert tried == [1 << 30] and batch == 512 << 20, (tried, batch)
        """,
        env=CARD,
    )


def test_zero_bytes_are_no_error_and_leak_nothing(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        a, b = torch.empty(0, device="cuda"), torch.empty((3, 0, 5), device="cuda")
        c = torch.empty(8, device="cuda")
        c.untyped_storage().resize_(0)
        del a, b, c
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
        assert gpumem_alloc.errors() == []
    """)


def test_double_free_and_foreign_pointers_are_named(machine: Machine) -> None:
    machine.run("""
        import ctypes, warnings, torch, gpumem_alloc, inside
        from gpumem_alloc import _C
        gpumem_alloc.enable()
        x = torch.ones(1000).cuda()
        free = ctypes.CDLL(_C.__file__).gma_free
        free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        mine = torch.cuda.caching_allocator_alloc(4096)
        torch.cuda.caching_allocator_delete(mine)
        inside.raised(RuntimeError, lambda: torch.cuda.caching_allocator_delete(mine))
        free(mine, 4096, 0, None)             # a double free
        free(0x123456789000, 4096, 0, None)   # a foreign pointer
        free(x.data_ptr() + 512, 512, 0, None)  # the middle of a block
        free(None, 0, 0, None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.memory_allocated()
            torch.cuda.memory_allocated()
        assert len(caught) == 1 and "free" in str(caught[0].message), caught
        errors = gpumem_alloc.errors()
        assert [call for call, _ in errors] == ["free"] * 3, errors
        for (_, text), address in zip(errors, (mine, 0x123456789000, x.data_ptr() + 512)):
            what, why, action = text.splitlines()
            assert f"address {address:#x}" in what, text
        assert x.cpu().sum() == 1000
        gpumem_alloc.audit()
    """)


def test_a_storage_has_a_base_allocation_around_it(machine: Machine) -> None:
    machine.run("""
        import ctypes, torch, gpumem_alloc
        from gpumem_alloc import _C
        gpumem_alloc.enable()
        x = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
        base_of = ctypes.CDLL(_C.__file__).gma_base_alloc
        base_of.restype = ctypes.c_void_p
        base_of.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
        size = ctypes.c_size_t()
        base = base_of(x.data_ptr(), size)
        assert base <= x.data_ptr() and x.data_ptr() + (5 << 20) <= base + size.value
        assert gpumem_alloc.errors() == []
    """)


def test_events_are_kept_when_asked_for(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc
        from gpumem_alloc import _C
        assert _C.event_ring_records() == b""
        gpumem_alloc.enable(event_ring_entries=1000)
        x = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
        place = x.data_ptr()
        del x
        from gpumem_alloc.recording import ring_events
        events = ring_events()
        ours = events[events["address"] == place]
        assert [int(event["bytes"]) for event in ours] == [5 << 20] * len(ours)
        assert len(ours) >= 2
    """)


def test_limits_and_fractions_hold_and_are_told(machine: Machine) -> None:
    machine.run(
        """
        import torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(0.5)
        assert abs(torch.cuda.get_per_process_memory_fraction() - 0.5) < 0.01
        empty = lambda n: torch.empty(n, dtype=torch.uint8, device="cuda")
        inside.raised(torch.OutOfMemoryError, lambda: empty(total // 2 + (64 << 20)))
        for limit in ("256MiB", 256 << 20, (256 << 20) / total):
            gpumem_alloc.set_limit(limit)
            x = empty(200 << 20)
            inside.raised(torch.OutOfMemoryError, lambda: empty(100 << 20))
            assert torch.cuda.memory_reserved() <= 256 << 20
            del x
        gpumem_alloc.set_limit(None)
        x = empty(300 << 20)
        inside.raised(ValueError, lambda: gpumem_alloc.set_limit(1.5))
        inside.raised(ValueError, lambda: gpumem_alloc.set_limit("lots"))
        gpumem_alloc.audit()
        """,
        env=CARD,
    )


def test_trim_gives_back_and_reserve_makes_ready(machine: Machine) -> None:
    machine.run("""
        import torch, gpumem_alloc, inside
        gpumem_alloc.enable()
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        y = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        del x
        used = inside.card_used_bytes()
        assert gpumem_alloc.trim() >= 60 << 20
        assert used - inside.card_used_bytes() >= 60 << 20
        assert gpumem_alloc.trim() == 0
        gpumem_alloc.reserve("128MiB")
        made = gpumem_alloc.stats()["num_device_alloc"]
        z = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        assert gpumem_alloc.stats()["num_device_alloc"] == made
        inside.raised(torch.OutOfMemoryError, lambda: gpumem_alloc.reserve(1 << 50))
        gpumem_alloc.audit()
    """)


@pytest.mark.parametrize(("divisions", "rounded_mib"), [(1, 1024), (2, 768), (4, 640), (8, 576)])
def test_roundup_power2_divisions_round_as_in_torch(
    rig: Machine, divisions: int, rounded_mib: int
) -> None:
    rig.run(f"""
        import torch, gpumem_alloc
        gpumem_alloc.enable(strategy="split", roundup_power2_divisions="{divisions}")
        x = torch.empty(514 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == {rounded_mib} << 20, torch.cuda.memory_allocated()
    """)


@pytest.mark.parametrize("call", ["cuMemUnmap", "cuMemRelease", "cuEventRecord", "cuEventQuery"])
def test_a_driver_error_inside_free_never_ends_the_process(rig: Machine, call: str) -> None:
    run = rig.run(f"""
        import warnings, torch, gpumem_alloc, inside
        warnings.simplefilter("ignore")
        gpumem_alloc.enable()
        stream = torch.cuda.Stream()
        keep = torch.arange(1000).cuda()
        x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        inside.fail("{call}", 700)
        x.record_stream(stream)
        del x
        torch.cuda.empty_cache()
        inside.fail("{call}", 0, times=0)
        y = torch.arange(1000).cuda()
        assert y.cpu().sum() == keep.cpu().sum() == 499500
        gpumem_alloc.audit()
    """)
    assert run.stderr == ""


@pytest.mark.parametrize("env", [{"RIG_NO_MAPPING": "1"}, {"RIG_FAIL": "cuMemMap=801"}])
def test_without_mapping_it_falls_back_to_split(rig: Machine, env: dict[str, str]) -> None:
    rig.run(
        """
        import warnings, torch, gpumem_alloc
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gpumem_alloc.enable()
            x, y = torch.ones(1000).cuda(), torch.ones(1 << 20).cuda()
            for _ in range(3):
                assert torch.cuda.memory_allocated() == 4096 + (4 << 20)
        assert x.cpu().sum() == 1000
        assert [str(w.message) for w in caught if "split" in str(w.message)] != []
        assert len(caught) == 1, [str(w.message) for w in caught]
        assert gpumem_alloc._C.strategy(0) == "split"
        gpumem_alloc.audit()
        """,
        env=env,
    )


def test_cudnns_autotuning_stays_off_and_says_so_once(machine: Machine) -> None:
    machine.run("""
        import warnings, torch, gpumem_alloc
        cudnn = torch.backends.cudnn
        ours = gpumem_alloc.allocator()
        cudnn.benchmark = True
        assert cudnn.benchmark  # ours does not serve yet
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            gpumem_alloc.enable()
            assert not cudnn.benchmark
            cudnn.benchmark = True
            with cudnn.flags(enabled=True, benchmark=True):
                assert not torch._C._get_cudnn_benchmark()
            cudnn.benchmark = False
        assert not cudnn.benchmark
        assert len(caught) == 1, [str(warning.message) for warning in caught]
        text = str(caught[0].message)
        assert "autotuning" in text and "benchmark = False" in text and "\\n" not in text, text
        assert caught[0].filename.endswith("-code"), caught[0]
    """)


def test_cudnns_flags_name_the_users_line(machine: Machine) -> None:
    run = machine.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            pass
    """)
    assert run.stderr.count("\n") == 2, run.stderr  # the warning and its line
    assert "code:4: RuntimeWarning: gpumem_alloc: cuDNN's autotuning" in run.stderr, run.stderr


@pytest.mark.gpu
def test_a_convolution_under_cudnn_benchmark_runs(gpu: Machine) -> None:
    gpu.run("""
        import warnings, torch, gpumem_alloc
        warnings.simplefilter("ignore")
        gpumem_alloc.enable()
        model = torch.nn.Conv2d(3, 16, 3).cuda()

        def train(size):
            model(torch.randn(4, 3, size, size, device="cuda")).sum().backward()

        torch.backends.cudnn.benchmark = True
        for size in (32, 64, 33):
            train(size)
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            train(65)
        torch.cuda.synchronize()
        gpumem_alloc.audit()
    """)


def test_a_large_workspace_comes_and_goes(rig: Machine) -> None:  # as cuDNN asks for one
    rig.run("""
        import torch, gpumem_alloc
        gpumem_alloc.enable()
        workspace = torch.cuda.caching_allocator_alloc(256 << 20)
        torch.cuda.caching_allocator_delete(workspace)
        assert torch.cuda.memory_allocated() == 0
        gpumem_alloc.audit()
    """)
