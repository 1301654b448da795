"""Several devices in one process, through both doors, and tensors sent from one to another."""

from __future__ import annotations

import pytest

from tests.rig.machine import Machine

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("bridge")]

DOORS = ("bridge", "stock")

# `reached_by(place, device)` asks the driver whether a device may write there.
_PRELUDE = """
    import ctypes, gc, torch, gpumem_alloc, inside
    from gpumem_alloc import isolation
    MIB = 1 << 20
    driver = ctypes.CDLL("libcuda.so.1")
    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
    def reached_by(place, device):
        flags, location = ctypes.c_ulonglong(), Location(1, device)
        place = ctypes.c_ulonglong(place)
        assert driver.cuMemGetAccess(ctypes.byref(flags), ctypes.byref(location), place) == 0
        return flags.value == 3  # to read and to write
    def tensor(count, device, value=1):
        return torch.full((count,), value, dtype=torch.uint8).to(f"cuda:{device}")
    def is_all(tensor, value):
        return bool((tensor.cpu() == value).all())
"""


@pytest.mark.parametrize("door", DOORS)
def test_books_limits_and_frees_are_of_each_device(pair: Machine, door: str) -> None:
    pair.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(door="{door}")
    kept = [[tensor(size, device) for size in (100, 70_000, 5 * MIB)] for device in (0, 1)]
    held = [gpumem_alloc.stats(device)["allocated_bytes.all.current"] for device in (0, 1)]
    assert held[0] == held[1] > 5 * MIB, held
    with torch.cuda.device(1):
        del kept[0]
        assert torch.cuda.memory_allocated(0) == 0
        assert torch.cuda.memory_allocated() == held[1]
    assert all(is_all(one, 1) for one in kept[0])
    gpumem_alloc.set_limit("64MiB", 1)
    inside.raised(torch.OutOfMemoryError, lambda: torch.empty(80 * MIB, device="cuda:1"))
    assert torch.empty(80 * MIB, dtype=torch.uint8, device="cuda:0").numel() == 80 * MIB
    assert gpumem_alloc.stats(1)["num_ooms"] == 1
    assert gpumem_alloc.stats(0)["num_ooms"] == 0
    del kept
    torch.cuda.empty_cache()
    assert [torch.cuda.memory_reserved(device) for device in (0, 1)] == [0, 0]
    gpumem_alloc.audit()
    assert gpumem_alloc.errors() == []
    """
    )


@pytest.mark.parametrize("door", DOORS)
def test_every_chunk_is_open_to_the_other_device(pair: Machine, door: str) -> None:
    pair.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(door="{door}", max_chunk_mb=2, slack_percent=0)
    early = [tensor(9 * MIB, device) for device in (0, 1)]
    assert torch.cuda.can_device_access_peer(0, 1)
    early[0].to("cuda:1")  # PyTorch looks for a way between them now
    kept = [tensor(3 * MIB, 0) for _ in range(12)]
    del kept[::2]
    late = [tensor(9 * MIB, device, 2) for device in (0, 1)]
    moved = tensor(16 * MIB, 0, 3)  # of chunks that lay in the gaps
    assert gpumem_alloc.stats(0)["moved_chunks"] > 0
    for one in (*early, *late, *kept, moved):
        for place in range(one.data_ptr(), one.data_ptr() + one.numel(), MIB):
            assert reached_by(place, 0) and reached_by(place, 1)
    assert is_all(moved.to("cuda:1"), 3) and is_all(late[1].to("cuda:0"), 2)
    gpumem_alloc.audit()
    """
    )


@pytest.mark.parametrize("level", ["stream", "packed", "tensor", "strict"])
def test_isolated_chunks_are_open_to_their_own_device_only(pair: Machine, level: str) -> None:
    pair.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(door="bridge", isolation="{level}")
    for device in (0, 1):
        one = tensor(3 * MIB, device)
        assert reached_by(one.data_ptr(), device)
        assert not reached_by(one.data_ptr(), 1 - device)
    assert is_all(one.to("cuda:0"), 1)
    here = tensor(3 * MIB, 0, 9)
    here.copy_(one, non_blocking=True)
    assert is_all(here, 1)
    assert isolation.check() == []
    gpumem_alloc.audit()
    """
    )


@pytest.mark.gpu
@pytest.mark.gpus(2)
@pytest.mark.parametrize("options", ["", 'isolation="packed"', 'isolation="strict"'])
def test_copies_of_all_kinds_with_access_and_without(gpu: Machine, options: str) -> None:
    gpu.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(door="bridge"{", " + options if options else ""})
    there = torch.arange(60_000, device="cuda:1").reshape(200, 300)
    for source in (there, there[:, ::7], there.t(), there[3:4].expand(50, 300), there[5]):
        for kind in (torch.int64, torch.float32, torch.bfloat16):
            for target in (torch.empty(source.shape, dtype=kind, device="cuda:0"),
                           torch.empty(source.t().shape, dtype=kind, device="cuda:0").t()):
                target.copy_(source)
                assert torch.equal(target.cpu(), source.cpu().to(kind))
            assert torch.equal(source.to("cuda:0", kind).cpu(), source.cpu().to(kind))
    gpumem_alloc.audit()
    assert gpumem_alloc.errors() == []
    """
    )


def test_without_access_a_copy_goes_through_the_host(rig: Machine) -> None:
    rig.run(
        _PRELUDE
        + """
    gpumem_alloc.enable(door="bridge")
    there = tensor(5 * MIB, 1, 7)
    assert not reached_by(there.data_ptr(), 0)
    assert is_all(there.to("cuda:0"), 7)
    assert inside.calls("cudaMemcpyPeerAsync") > 0
    gpumem_alloc.audit()
    """,
        env={"RIG_DEVICES": "2", "RIG_NO_PEERS": "1"},
    )


def test_the_stock_door_tells_that_devices_without_access_cannot_copy(rig: Machine) -> None:
    code = (
        _PRELUDE
        + """
    gpumem_alloc.enable(door="stock")
    assert is_all(tensor(10, 0), 1)
    """
    )
    for peers, said in (("1", 1), ("0", 0)):
        run = rig.run(code, env={"RIG_DEVICES": "2", "RIG_NO_PEERS": peers})
        assert run.stderr.count("or take the bridge") == said, run.stderr


def test_a_late_enable_serves_every_device(pair: Machine) -> None:
    pair.run(
        _PRELUDE
        + """
    early = [tensor(3 * MIB, device, 4) for device in (0, 1)]
    assert "stays with PyTorch's allocator" in gpumem_alloc.enable(door="bridge")
    late = [tensor(3 * MIB, device, 5) for device in (0, 1)]
    assert [gpumem_alloc.stats(n)["allocated_bytes.all.current"] for n in (0, 1)] == [3 * MIB] * 2
    for device in (0, 1):
        assert is_all(early[device].to(f"cuda:{1 - device}"), 4)
        early[device].copy_(late[1 - device])
        assert is_all(early[device], 5)
    with torch.cuda.device(1):
        del early[0], late[0]
    del early, late
    gc.collect()
    gpumem_alloc.audit()
    assert gpumem_alloc.errors() == []
    """
    )


@pytest.mark.gpu
def test_chunks_are_reachable_by_network_cards_where_the_card_can(gpu: Machine) -> None:
    gpu.run(
        _PRELUDE
        + """
    class Properties(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                    ("metadata", ctypes.c_void_p), ("compression", ctypes.c_ubyte),
                    ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort),
                    ("reserved", ctypes.c_ubyte * 4)]
    gpumem_alloc.enable(door="bridge")
    for device in range(torch.cuda.device_count()):
        one = tensor(3 * MIB, device)
        can = ctypes.c_int()
        assert driver.cuDeviceGetAttribute(ctypes.byref(can), 110, device) == 0
        handle, found = ctypes.c_ulonglong(), Properties()
        place = ctypes.c_void_p(one.data_ptr())
        assert driver.cuMemRetainAllocationHandle(ctypes.byref(handle), place) == 0
        assert driver.cuMemGetAllocationPropertiesFromHandle(ctypes.byref(found), handle) == 0
        assert driver.cuMemRelease(handle) == 0
        assert found.location.id == device and found.type == 1
        print("RDMA", device, can.value, found.rdma, found.handles)
        assert found.rdma == can.value and found.handles & 1
    """
    )


def test_a_tensor_of_one_device_is_sent_to_a_process_that_uses_another(pair: Machine) -> None:
    pair.run(
        _PRELUDE
        + """
    import peers
    gpumem_alloc.enable(door="bridge")
    mp = torch.multiprocessing.get_context("spawn")
    inbox, outbox = mp.Queue(), mp.Queue()
    child = mp.Process(target=peers.elsewhere, args=(inbox, outbox, 1), daemon=True)
    child.start()
    for size in (100, 70_000, 5 * MIB):
        one = tensor(size, 0, 6)
        inbox.put(one)
        device, there, total = outbox.get(timeout=60)
        assert (device, there) == (0, 1), (device, there)
        assert total == 6 * size, (total, size)
        assert outbox.get(timeout=60) == "written"
        assert is_all(one, 8)
    del one
    inbox.put(None)
    child.join(60)
    assert child.exitcode == 0
    gc.collect()
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated(0) == 0
    gpumem_alloc.audit()
    """
    )
