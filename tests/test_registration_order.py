"""NCCL registers a pool's segments in the order of their numbers, which all ranks must share.

PyTorch fails on a segment without a number (ProcessGroupNCCL.register_mem_pool).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.host.compiled_loops import compile_loops
from tests.rig.machine import Machine

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("bridge")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader of snapshots, compiled against torch's headers."""
    sources = Path(__file__).parent / "interface"
    return compile_loops("registration_order", tmp_path_factory.mktemp("interface"), sources)


@pytest.mark.parametrize(
    "enable",
    ["", *('door="bridge"' + more for more in ("", ', strategy="split"', ', isolation="tensor"'))],
)
def test_a_pools_segments_have_numbers_in_the_order_they_were_made(
    machine: Machine, library: Path, enable: str
) -> None:
    done = machine.run(
        f"""
        import ctypes, json, torch
        if {enable!r}:
            import gpumem_alloc
            gpumem_alloc.enable({enable})
        library = ctypes.CDLL({str(library)!r})
        number, size = ctypes.c_uint64, ctypes.c_size_t
        library.segments_of_pool.argtypes = [number, number, ctypes.c_void_p, size]
        library.segments_of_pool.restype = size
        sides = [torch.cuda.Stream() for _ in range(3)]  # a segment of each at least
        pool, kept, looks = torch.cuda.MemPool(), [], []
        for side in sides:
            with torch.cuda.use_mem_pool(pool), torch.cuda.stream(side):
                kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))
            found = (ctypes.c_int64 * 3 * 64)()
            count = library.segments_of_pool(*pool.id, found, 64)
            looks.append([list(each) for each in found[:count]])
        print("LOOKS", json.dumps(looks))
        """
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("LOOKS ")]
    looks = json.loads(line.removeprefix("LOOKS "))
    numbers: dict[int, int] = {}  # by where a segment begins
    for look in looks:
        made = {begin: number for begin, _, number in look if begin not in numbers}
        assert made, looks
        assert min(made.values()) > max(numbers.values(), default=-1)
        numbers |= made
    assert numbers == {begin: number for begin, _, number in looks[-1]}
    assert len(set(numbers.values())) == len(numbers) >= 3
