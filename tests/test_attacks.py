"""`_C.attack`: accesses made on purpose, on the driver on the CPU and on a card."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.rig.machine import Machine


def run(code: str) -> None:
    """Run `code` in a process of its own: a process has one driver."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_on_the_cpu_a_fault_is_an_answer() -> None:
    run("""
        from gpumem_alloc import _C
        _C.use_host_driver("strategy:paged", device_count=2, capacity_bytes=64 << 20)
        assert _C.has_host_driver() and _C.device_count() == 2
        block = _C.allocate(1 << 20, 0, 16)
        assert _C.attack("poke", 0, 16, block, index=5, bytes=3, value=0x41).wait() == "done"
        peek = _C.attack("peek", 0, 16, block, index=4, bytes=5)
        assert (peek.wait(), peek.data) == ("done", b"\\0AAA\\0")
        assert _C.attack("scatter", 0, 16, block, index=-1, value=1).wait() == "fault"
        late = _C.attack("gather", 0, 16, block)
        assert late.poll() is None
        assert _C.host_advance(0, 16, 100) == 2  # the access, and the event behind it
        assert (late.poll(), len(late.data)) == ("done", 4)
        _C.free(block)
        _C.trim(0, 1 << 40)
        assert _C.attack("gather", 0, 16, block).wait() == "fault"
    """)


def test_on_the_cpu_what_cannot_be_is_refused() -> None:
    run("""
        from gpumem_alloc import _C
        def refusal(call, *arguments, **named):
            try:
                call(*arguments, **named)
            except (_C.StatusError, ValueError) as error:
                return str(error)
        assert "use_host_driver" in refusal(_C.host_drain)
        _C.use_host_driver("")
        assert "has served memory already" in refusal(_C.use_host_driver, "")
        assert "not bite" in refusal(_C.attack, "bite", 0, 0, 4096)
        assert "65536 bytes" in refusal(_C.attack, "peek", 0, 0, 4096, bytes=65537)
    """)


@pytest.mark.torch
def test_on_a_card_memory_is_hit_where_it_is(machine: Machine) -> None:
    machine.run("""
        import torch
        from gpumem_alloc import _C
        x = torch.zeros(1024, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        if not _C.has_cuda_kernels():
            try:
                _C.attack("poke", 0, 0, x.data_ptr())
            except _C.StatusError as error:
                assert error.args[0] == "not_supported"
            raise SystemExit
        side = torch.cuda.Stream()
        poke = _C.attack("poke", 0, side.cuda_stream, x.data_ptr(), index=1, bytes=600,
                         value=0x41, spin_ns=20_000_000)
        assert poke.wait() == "done"
        assert x.cpu().tolist() == [0] + [0x41] * 600 + [0] * 423
        peek = _C.attack("peek", 0, 0, x.data_ptr(), bytes=3)
        assert (peek.wait(), peek.data) == ("done", b"\\0AA")
        _C.attack("scatter", 0, 0, x.data_ptr() + 8, index=-2, value=0x01020304).wait()
        gather = _C.attack("gather", 0, 0, x.data_ptr())
        assert (gather.wait(), gather.data) == ("done", b"\\4\\3\\2\\1")
    """)


@pytest.mark.torch
def test_on_a_card_a_fault_is_an_answer_and_ends_the_context(machine: Machine) -> None:
    done = machine.run("""
        import torch
        from gpumem_alloc import _C
        torch.zeros(1, device="cuda")
        if not _C.has_cuda_kernels():
            raise SystemExit
        assert _C.attack("poke", 0, 0, 1 << 46).wait() == "fault"
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            assert "illegal memory access" in str(error), error
        else:
            raise AssertionError("the context is alive")
        import os
        os._exit(0)  # torch's destructors complain
    """)
    assert "Traceback" not in done.stderr
