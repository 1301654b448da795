"""The no-sharing mode from Python: who has it, what it finds, and who is told."""

from __future__ import annotations

import pytest

from gpumem_alloc import _C, isolation
from gpumem_alloc.isolation.ledger import STATES
from tests.rig.machine import Machine

pytestmark = pytest.mark.torch

# `write(address, bytes)` is what a kernel with a wrong bound does.
_PRELUDE = """
    import ctypes, threading, torch, gpumem_alloc, inside
    from gpumem_alloc import _C, isolation
    def write(address, count):
        torch.cuda.synchronize()
        memset = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
        place = ctypes.c_void_p(address), ctypes.c_ubyte(0x5A), ctypes.c_size_t(count)
        assert memset(*place, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)) == 0
        torch.cuda.synchronize()
    def tensor(count=1000):
        return torch.empty(count, dtype=torch.uint8, device="cuda")
    def level_of(tensor):
        levels = [row["level"] for row in isolation.ledger() if row["address"] == tensor.data_ptr()]
        assert len(levels) <= 1
        return _C.isolation_levels()[levels[0]] if levels else "none"
"""


def test_a_region_is_of_its_thread_and_the_innermost_decides(machine: Machine) -> None:
    machine.run(
        _PRELUDE
        + """
    def elsewhere():
        made = []
        thread = threading.Thread(target=lambda: made.append(tensor()))
        thread.start()
        thread.join()
        return level_of(made[0])
    @gpumem_alloc.isolated("packed")
    def decorated():
        return tensor()
    gpumem_alloc.enable()
    assert level_of(tensor()) == "none"
    with gpumem_alloc.isolated():
        kept = tensor()
        assert level_of(kept) == "tensor" and elsewhere() == "none"
        with gpumem_alloc.isolated("strict", all_threads=True):
            assert level_of(tensor()) == "tensor" and elsewhere() == "strict"
            with gpumem_alloc.isolated("packed"):
                assert level_of(tensor()) == "packed"
        assert level_of(tensor()) == "tensor" and elsewhere() == "none"
    assert level_of(tensor()) == "none" and level_of(kept) == "tensor"
    for _ in range(2):
        assert level_of(decorated()) == "packed"
    try:
        with gpumem_alloc.isolated():
            raise KeyError
    except KeyError:
        assert level_of(tensor()) == "none"
    gpumem_alloc.audit()
    """
    )


def test_a_region_that_cannot_be_had_is_refused(rig: Machine) -> None:
    rig.run(
        _PRELUDE
        + """
    def enter(level):
        with gpumem_alloc.isolated(level):
            raise AssertionError("it was entered")
    assert "enable()" in inside.raised(gpumem_alloc.AllocatorError, lambda: enter("tensor"))
    gpumem_alloc.enable()
    for level in ("tense", "off", tensor):
        text = inside.raised(gpumem_alloc.OptionError, lambda: enter(level))
        assert "packed, tensor" in text and len(text.splitlines()) == 3, text
    assert level_of(tensor()) == "none"
    """
    )


@pytest.mark.parametrize("level", ["packed", "tensor", "strict"])
def test_an_overrun_is_found_and_told(machine: Machine, level: str) -> None:
    run = machine.run(
        _PRELUDE
        + f"""
    gpumem_alloc.enable(isolation="{level}")
    assert isolation.violations() == [] and isolation.check() == []
    victim = tensor(1000)
    address, stream = victim.data_ptr(), torch.cuda.current_stream().cuda_stream
    write(address + 1000, 3)
    assert isolation.violations() == []  # nobody has looked
    (found,) = isolation.check()
    assert isolation.check() == [found]
    if "{level}" == "packed":
        del victim
        torch.cuda.synchronize()
    assert isolation.check() == isolation.violations(0) == [found]
    assert (found.kind, found.device, found.level) == ("overrun", 0, "{level}")
    assert (found.address, found.requested_bytes, found.stream) == (address, 1000, stream)
    assert (found.first_bad, found.bad_bytes) == (address + 1000, 3)
    assert found.found[:3] == b"\\x5a" * 3
    assert found.free_number == found.freed_at_ns == 0
    assert 0 < found.allocated_at_ns < found.found_at_ns
    assert str(found) == found.text and "overrun" in found.text
    report = isolation.report()
    assert report.level == "{level}" and report.violation_count == 1
    assert report.violations == [found]
    assert (report.shortcoming == "") == _C.has_cuda_kernels()
    (told,) = gpumem_alloc.errors()
    assert told == gpumem_alloc.errors()[0] == ("overrun", found.text)
    """
    )
    assert run.stderr.count("RuntimeWarning: gpumem_alloc: overrun of a tensor") == 1


def test_a_free_checks_and_two_frees_are_named(machine: Machine) -> None:
    run = machine.run(
        _PRELUDE
        + """
    gpumem_alloc.enable(isolation="strict")
    victim = tensor(5000)
    address = victim.data_ptr()
    write(address + 5000, 1)
    del victim
    (found,) = isolation.violations()
    assert (found.kind, found.first_bad) == ("overrun", address + 5000)
    free = ctypes.CDLL(_C.__file__).gma_free
    free(ctypes.c_void_p(address), ctypes.c_size_t(5000), 0, None)
    found = isolation.violations()[1]
    assert (found.kind, found.address, found.free_number) == ("double free", address, 1)
    assert found.allocated_at_ns < found.freed_at_ns < found.found_at_ns
    assert [call for call, _ in gpumem_alloc.errors()] == ["free", "overrun"]
    assert isolation.report().quarantined_address_bytes > 0
    """
    )
    assert run.stderr.count("RuntimeWarning") == 2


def test_the_ledger_knows_each_tensor(machine: Machine) -> None:
    machine.run(
        _PRELUDE
        + """
    import numpy as np
    from gpumem_alloc.isolation.ledger import STATES
    assert isolation.ledger().size == 0  # and nothing is started
    assert not _C.is_made()
    gpumem_alloc.enable(isolation="strict")
    first, second = tensor(1000), tensor(3 << 20)
    place = second.data_ptr()
    del second
    rows = isolation.ledger()
    assert rows["allocation_number"].tolist() == [1, 2]
    assert rows["address"].tolist() == [first.data_ptr(), place]
    assert rows["requested_bytes"].tolist() == [1000, 3 << 20]
    assert [STATES[state] for state in rows["state"]] == ["live", "quarantined"]
    assert rows["free_number"].tolist() == [0, 1]
    assert (rows["freed_at_ns"] > 0).tolist() == [False, True]
    assert (rows["window_begin"] < rows["address"]).all()
    assert (rows["window_end"] > rows["address"] + rows["requested_bytes"]).all()
    """
    )


def test_a_forked_child_is_refused_and_not_told(rig: Machine) -> None:
    rig.run(
        _PRELUDE
        + """
    import os
    gpumem_alloc.enable(isolation="tensor")
    kept = tensor()
    child = os.fork()
    if child == 0:
        for call in (isolation.violations, isolation.check, isolation.report, isolation.ledger):
            inside.raised(gpumem_alloc.AllocatorError, call)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    """
    )


def test_before_anything_is_allocated_all_is_empty() -> None:
    assert isolation.violations() == []
    assert isolation.check() == []
    assert isolation.report(3) == isolation.IsolationReport("off", 0, 0, 0, 0, 0, [], "")
    assert isolation.ledger(3).size == 0


def test_names_are_those_of_the_core() -> None:
    assert _C.isolation_levels() == ["off", "stream", "packed", "tensor", "strict"]
    assert STATES == ("live", "waiting", "quarantined")
