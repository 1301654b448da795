"""The no-sharing mode through both doors into PyTorch: what it says, refuses and serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.behaviour.table import behaviours
from tests.rig.machine import Machine
from tests.test_behaviour import ROOT, torch_version

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("bridge")]

DOORS = ("bridge", "stock")
LEVELS = ("stream", "packed", "tensor", "strict")

# `write(address, bytes)` is what a kernel with a wrong bound does; `refusal()` is what sending a
# tensor ends in.
_PRELUDE = """
    import ctypes, gc, os, torch, gpumem_alloc, inside
    from gpumem_alloc import _C, isolation
    MIB = 1 << 20
    def write(address, count):
        torch.cuda.synchronize()
        memset = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
        place = ctypes.c_void_p(address), ctypes.c_ubyte(0x5A), ctypes.c_size_t(count)
        assert memset(*place, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)) == 0
        torch.cuda.synchronize()
    def tensor(count=1000, device="cuda"):
        return torch.empty(count, dtype=torch.uint8, device=device)
    def refusal(tensor):
        from multiprocessing.reduction import ForkingPickler
        files = len(os.listdir("/proc/self/fd"))
        texts = {inside.raised(RuntimeError, call) for call in (
            tensor.untyped_storage()._share_cuda_,
            lambda: ForkingPickler.dumps(tensor),
        )}
        assert len(os.listdir("/proc/self/fd")) == files
        (text,) = texts
        return text
"""


# --- enable() -------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_enable_names_the_level(rig: Machine, door: str) -> None:
    code = (
        _PRELUDE
        + f"""
    line = gpumem_alloc.enable(door="{door}", ARGUMENTS)
    assert line.endswith(", isolation:LEVEL") and "{door}" in line, line
    tensor()
    now = gpumem_alloc.options()
    assert (now.strategy, now.isolation) == ("isolated", "LEVEL"), now
    assert _C.strategy(0) == "isolated"
    assert isolation.report().level == "LEVEL"
    assert gpumem_alloc.enable() == line
    """
    )
    cases = [
        ('isolation="strict"', "strict", "isolation:packed"),
        ("", "packed", "isolation:packed"),
        ('strategy="isolated"', "tensor", ""),
    ]
    for arguments, level, conf in cases if door == "bridge" else cases[:1]:
        changed = code.replace("ARGUMENTS", arguments).replace("LEVEL", level)
        rig.run(changed, env={"GPUMEM_ALLOC_CONF": conf} if conf else {})


def test_a_level_that_cannot_be_had_is_refused(rig: Machine) -> None:
    rig.run(
        _PRELUDE
        + """
    for options, word in (
        ({"isolation": "strikt"}, "strict"),
        ({"isolation": "strict", "strategy": "split"}, "split"),
        ({"isolation": "stream", "strategy": "direct"}, "direct"),
    ):
        text = inside.raised(gpumem_alloc.OptionError, lambda: gpumem_alloc.enable(**options))
        assert word in text and len(text.splitlines()) == 3, text
    assert not gpumem_alloc.is_enabled()
    assert "isolation" not in gpumem_alloc.enable()
    """
    )


@pytest.mark.parametrize("door", DOORS)
def test_without_mapping_nothing_serves_instead(rig: Machine, door: str) -> None:
    for level in ("stream", "strict"):
        rig.run(
            _PRELUDE
            + f"""
    gpumem_alloc.enable(door="{door}", isolation="{level}")
    text = inside.raised(RuntimeError, tensor)
    what, why, fix = text.splitlines()[:3]
    assert "isolation needs virtual memory management" in what and "isolation" in fix, text
    assert inside.calls("cuMemAlloc") == inside.calls("cuMemAlloc_v2") == 0
    """,
            env={"RIG_NO_MAPPING": "1"},
        )


# --- no way out -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("door", "level"), [*(("bridge", one) for one in LEVELS), ("stock", "strict")]
)
def test_no_tensor_leaves_the_process(machine: Machine, door: str, level: str) -> None:
    machine.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(door="{door}", isolation="{level}")
    for size in (100, 70_000, 3 * MIB):
        text = refusal(tensor(size))
        assert "isolation:{level} lets no memory out of the process" in text, text
        assert len(text.splitlines()) == 3 and "without isolation" in text, text
    if inside.ON_RIG:
        assert inside.calls("cuMemExportToShareableHandle") == 0
    """
    )


def test_only_the_tensors_of_a_region_are_kept(machine: Machine) -> None:
    machine.run(
        _PRELUDE
        + """
    gpumem_alloc.enable(door="bridge")
    outside = [tensor(size) for size in (100, 3 * MIB)]
    with gpumem_alloc.isolated("packed"):
        inner = [tensor(size) for size in (100, 3 * MIB)]
    with gpumem_alloc.isolated("strict"):
        inner += [tensor(size) for size in (100, 3 * MIB)]
    for one, level in zip(inner, ("packed", "packed", "strict", "strict"), strict=True):
        text = refusal(one)
        assert f"isolation:{level} lets no memory out" in text, text
        assert "outside gpumem_alloc.isolated()" in text, text
    for one in outside:
        one.untyped_storage()._share_cuda_()
    del outside, one, inner
    gpumem_alloc.audit()
    """
    )


def test_the_stock_door_names_the_mode_for_a_region(machine: Machine) -> None:
    machine.run(
        _PRELUDE
        + """
    gpumem_alloc.enable(door="stock")
    outside = tensor()
    with gpumem_alloc.isolated("packed"):
        inner = tensor()
    assert "isolation:packed lets no memory out" in refusal(inner)
    assert "Take the bridge" in refusal(outside)
    """
    )


def test_caching_that_is_switched_off_is_no_way_around(rig: Machine) -> None:
    run = rig.run(
        _PRELUDE
        + """
    gpumem_alloc.enable(door="bridge", isolation="tensor")
    one = tensor()
    torch.cuda.caching_allocator_enable(False)
    two = tensor()
    rows = isolation.ledger()
    assert {one.data_ptr(), two.data_ptr()} <= set(rows["address"].tolist())
    """,
        env={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING changes nothing" in run.stderr
    assert "caching_allocator_enable(False) changes nothing" in run.stderr


@pytest.mark.parametrize(
    "fault", ['"cuMemGetAllocationGranularity", 1, 1', '"cuMemCreate", 801, 0, 1']
)
def test_a_card_without_compressible_memory_is_served_all_the_same(
    rig: Machine, fault: str
) -> None:
    rig.run(
        _PRELUDE
        + f"""
    inside.fail({fault})
    gpumem_alloc.enable(door="bridge", isolation="tensor")
    one = tensor(3 * MIB)
    descriptor = ctypes.c_int(-1)
    driver = ctypes.CDLL("libcuda.so.1")
    place = ctypes.c_uint64(one.data_ptr() // (2 * MIB) * (2 * MIB))
    dma_buf = ctypes.byref(descriptor), place, ctypes.c_size_t(2 * MIB), 1, ctypes.c_uint64(0)
    assert driver.cuMemGetHandleForAddressRange(*dma_buf) == 0  # plain memory
    assert isolation.check() == []
    gpumem_alloc.audit()
    """
    )


@pytest.mark.gpu
def test_a_card_refuses_exports_and_faults_at_the_guard(gpu: Machine) -> None:
    gpu.run(
        _PRELUDE
        + """
    gpumem_alloc.enable(door="bridge", isolation="tensor")
    victim = tensor(3 * MIB)
    place, page = victim.data_ptr(), victim.data_ptr() // (2 * MIB) * (2 * MIB)
    driver = ctypes.CDLL("libcuda.so.1")
    word, size = ctypes.c_uint64, ctypes.c_size_t
    ipc, memory, descriptor = (ctypes.c_char * 64)(), word(), ctypes.c_int(-1)
    assert driver.cuIpcGetMemHandle(ipc, word(place)) != 0
    assert driver.cuMemRetainAllocationHandle(ctypes.byref(memory), ctypes.c_void_p(page)) == 0
    assert driver.cuMemExportToShareableHandle(ctypes.byref(descriptor), memory, 1, word(0)) != 0
    assert driver.cuMemRelease(memory) == 0
    dma_buf = ctypes.byref(descriptor), word(page), size(2 * MIB), 1, word(0)
    assert driver.cuMemGetHandleForAddressRange(*dma_buf) != 0
    assert descriptor.value == -1
    class Beyond:
        __cuda_array_interface__ = {
            "shape": (16 * MIB,), "typestr": "|u1", "data": (place, False), "version": 3,
        }
    beyond = torch.as_tensor(Beyond(), device="cuda")
    text = inside.raised(RuntimeError, lambda: beyond.sum().item())
    assert "illegal memory access" in text, text
    os._exit(0)
    """
    )


# --- other devices --------------------------------------------------------------------------------


def test_devices_copy_and_do_not_reach_each_other(rig: Machine) -> None:
    rig.run(
        _PRELUDE
        + """
    gpumem_alloc.enable(door="bridge", isolation="strict")
    there = tensor(5000, "cuda:1").copy_(torch.arange(5000).to(torch.uint8))
    here = there.to("cuda:0")
    assert torch.equal(here.cpu(), there.cpu()) and here.device.index == 0
    column = tensor(100, "cuda:0").view(10, 10)[:, 0]
    column.copy_(there[:10].float())  # neither dense nor of one type: no kernel reads the other's
    there.expand(3, 5000).to("cuda:0")
    native = torch.ops.aten.copy_.default._op_dk
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    text = inside.raised(RuntimeError, lambda: native(key, here, there))
    assert "isolation:strict lets no device reach another's memory" in text, text
    assert len(text.splitlines()) == 3, text
    gpumem_alloc.audit()
    """,
        env={"RIG_DEVICES": "2"},
    )


def test_the_stock_door_tells_that_it_cannot_copy_between_devices(rig: Machine) -> None:
    code = (
        _PRELUDE
        + """
    gpumem_alloc.enable(door="stock", isolation="tensor")
    assert tensor(10, "cuda:0").copy_(torch.arange(10)).cpu().to("cuda:1").device.index == 1
    """
    )
    for count, said in (("2", 1), ("1", 0)):
        run = rig.run(
            code if said else code.replace("cuda:1", "cuda:0").replace("== 1", "== 0"),
            env={"RIG_DEVICES": count},
        )
        assert run.stderr.count("or take the bridge") == said, run.stderr


def test_a_regions_tensors_are_copied_between_devices(rig: Machine) -> None:
    rig.run(
        _PRELUDE
        + """
    gpumem_alloc.enable(door="bridge")
    values = torch.arange(5000).to(torch.uint8)
    outside = [tensor(5000, f"cuda:{n}").copy_(values) for n in (0, 1)]
    with gpumem_alloc.isolated("tensor"):
        inner = [tensor(5000, f"cuda:{n}").copy_(values + 1) for n in (0, 1)]
    for to, source in ((inner[0], outside[1]), (outside[1], inner[0]), (inner[0], inner[1])):
        to.copy_(source)
        assert torch.equal(to.cpu(), source.cpu())
    outside[0].copy_(outside[1])
    gpumem_alloc.audit()
    """,
        env={"RIG_DEVICES": "2"},
    )


# --- what is found wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("level", ["packed", "tensor"])
def test_a_violation_makes_the_next_allocation_fail_if_asked(
    machine: Machine, door: str, level: str
) -> None:
    machine.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(door="{door}", isolation="{level}", on_violation="raise")
    for size in (1000, 3 * MIB + 8):
        victim = tensor(size)
        write(victim.data_ptr() + size, 2)
        del victim  # a free never throws
        isolation.check()
        text = inside.raised(RuntimeError, lambda: tensor(size))
        assert text.startswith("gpumem_alloc: overrun of a tensor of"), text
        assert len(text.splitlines()) == 3, text
        tensor(size)  # said once
    gpumem_alloc.audit()
    """
    )


@pytest.mark.parametrize("door", DOORS)
def test_a_refused_free_is_told_once(machine: Machine, door: str) -> None:
    run = machine.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(door="{door}", isolation="tensor")
    kept = [tensor() for _ in range(3)]
    place = kept[1].data_ptr()
    free = ctypes.CDLL(_C.__file__).gma_free
    free(ctypes.c_void_p(place), ctypes.c_size_t(1000), 0, None)
    del kept  # the second free
    tensor()
    (entry,) = gpumem_alloc.errors()
    assert entry[0] == "free" and "double free of a tensor" in entry[1], entry
    assert [one.kind for one in isolation.violations()] == ["double free"]
    assert gpumem_alloc.errors() == [entry]
    """
    )
    assert run.stderr.count("double free of a tensor") == 1


# --- graphs and pools -----------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_graphs_and_pools_are_served(bridged: Machine, level: str) -> None:
    bridged.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(isolation="{level}")
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        scratch = tensor(3 * MIB)
        small = tensor(700)
        del scratch
        result = tensor(5 * MIB)
    places = result.data_ptr(), small.data_ptr()
    del small
    others = [tensor(3 * MIB) for _ in range(4)]
    assert not {{one.data_ptr() for one in others}} & set(places)
    torch.cuda.empty_cache()
    graph.replay()  # its memory is mapped still
    torch.cuda.synchronize()
    assert isolation.check() == []
    pool = graph.pool()
    assert torch.cuda.memory_snapshot(pool)
    del graph, result, others
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_snapshot(pool) == []
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inner = [tensor(size) for size in (100, 3 * MIB)]
    assert len(pool.snapshot()) >= 1
    del inner
    del pool
    assert torch.cuda.memory_allocated() == 0

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(64, device="cuda"))
        def forward(self, inputs):
            return (inputs * self.weight).relu()
    samples = [torch.randn(8, 64).cuda().requires_grad_(wants) for wants in (False, True)]
    first, second = torch.cuda.make_graphed_callables(
        (Scale(), Scale()), tuple((sample,) for sample in samples)
    )
    for _ in range(2):
        second(first(samples[0])).sum().backward()
    assert isolation.check() == []
    assert isolation.violations() == []
    gpumem_alloc.audit()
    """
    )


# What these behaviours ask for is what the level is there to prevent: nothing is kept for the next
# tensor of a pool that no graph uses, and each tensor is a segment.
_DIFFERENT: dict[str, set[str]] = {
    "packed": set(),
    "tensor": {
        "pools.a_tensor_outlives_its_pool",  # in the snapshot it is the default pool's then
        "pools.deleting_a_pool_gives_its_memory_back",
        "pools.empty_cache_inside_a_pool_leaves_what_it_serves",
        "pools.empty_cache_leaves_a_pool_that_is_held",
        "pools.the_pools_free_memory_serves_only_the_pool",
        "pools.without_splitting_each_block_is_a_segment",  # so is each without no_split
    },
}


@pytest.mark.parametrize("level", sorted(_DIFFERENT))
def test_graphs_pools_and_checkpoints_behave_as_ever(
    rig: Machine, tmp_path: Path, level: str
) -> None:
    names = [
        name
        for name, row in behaviours().items()
        if row.group in ("graphs", "checkpoints", "pools")
        and row.runs_on("rig")
        and row.since <= torch_version()
        and not (row.alone or row.env)
        and "emergenc" not in name  # their limits leave no room for redzones and whole pages
    ]
    report = tmp_path / "report"
    rig.run(
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "from tests.behaviour import worker\n"
        f"worker.main('bridge', {names!r}, {str(report)!r})\n",
        env={"GPUMEM_ALLOC_CONF": f"isolation:{level}"},
    )
    done = [entry for entry in map(json.loads, report.read_text().splitlines()) if "done" in entry]
    assert [entry["done"] for entry in done] == names
    wrong = {entry["done"]: entry["wrong"] for entry in done if entry["wrong"]}
    assert set(wrong) == _DIFFERENT[level], wrong
