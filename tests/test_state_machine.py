"""Random sequences of everything a program does with an allocator, against a plain model.

The allocator runs over the host driver with real memory, behind a line protocol
(tests/cpp/host_machine.cpp). Each block is written by a kernel on its stream when it is allocated
and checked by kernels on the streams that use it; the streams run only when a rule advances them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import ROOT

KIB = 1 << 10
MIB = 1 << 20
SLAB = 64 * KIB
SMALL = 8 * KIB


class HostMachine:
    """The process that holds the allocator; a command that fails raises AssertionError."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def renew(self) -> None:
        """After a death, so that hypothesis can go on and shrink what caused it."""
        if self.process.poll() is not None:
            self.close_pipes()
            self.process = self.start()

    def ask(self, *words: object) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the machine died at: {words} (exit code {self.process.wait()})"
        return line.split()

    def tell(self, *words: object) -> list[int]:
        kind, *values = self.ask(*words)
        assert kind == "ok", (words, kind, " ".join(values))
        return [int(value) for value in values]

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def close(self) -> None:
        self.close_pipes()
        assert self.process.wait() == 0


@pytest.fixture(scope="module")
def host_machine() -> Iterator[HostMachine]:
    """Built by CMake, unless GMA_HOST_MACHINE names one (of a sanitizer's build, say)."""
    given = os.environ.get("GMA_HOST_MACHINE")
    made = HostMachine(build() if given is None else Path(given))
    yield made
    made.close()


def build() -> Path:
    cmake = shutil.which("cmake")
    assert cmake is not None, "the state machine is built with cmake, which is not on PATH"
    folder = ROOT / "build" / "dev"
    if not (folder / "build.ninja").exists():
        run(cmake, "--preset", "dev")
    run(cmake, "--build", str(folder), "--target", "host_machine")
    return folder / "tests" / "cpp" / "host_machine"


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@dataclass
class Block:
    device: int
    stream: int
    size: int
    pattern: int
    pool: int


@dataclass
class Setting:
    """One machine to test: its card and options."""

    options: str
    page: int
    capacity: int
    # Every request that fits by the pages of live blocks must succeed.
    fits_is_promised: bool = True


SETTINGS = {
    "paged": Setting("strategy:paged", 64 * KIB, 24 * MIB),
    "paged-large-pages": Setting("strategy:paged", 2 * MIB, 96 * MIB),
    "paged-large-chunks": Setting("strategy:paged,chunk_divisor:4", 64 * KIB, 24 * MIB, False),
    "paged-passed": Setting("strategy:paged,cross_stream:passed", 64 * KIB, 24 * MIB, False),
    "paged-wait": Setting("strategy:paged,cross_stream:wait", 64 * KIB, 24 * MIB),
    "split": Setting("strategy:split,max_split_size_mb:20", 2 * MIB, 96 * MIB, False),
    "direct": Setting("strategy:direct", 64 * KIB, 24 * MIB, False),
}

streams = st.integers(0, 2)
devices = st.integers(0, 1)
choices = st.integers(0, 1 << 30)


class AllocatorMachine(RuleBasedStateMachine):
    machine: ClassVar[HostMachine]
    setting: ClassVar[Setting]

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, Block] = {}
        self.freed: set[int] = set()
        self.limits: list[int] = []
        self.pools: dict[int, tuple[int, int]] = {}  # begun: pool -> device, stream
        self.ended: dict[int, int] = {}  # not yet released: pool -> device
        self.pool_count = 0
        self.pattern = 0

    @initialize(device_count=st.integers(1, 2))
    def start(self, device_count: int) -> None:
        setting = self.setting
        self.machine.renew()
        self.limits = [setting.capacity] * device_count
        self.ask("new", device_count, setting.capacity, setting.page, setting.options)

    # Stream 0 is the default stream, others belong to one device.
    @staticmethod
    def handle(device: int, stream: int) -> int:
        return 0 if stream == 0 else (device * 8 + stream) << 12

    def ask(self, *words: object) -> list[int]:
        return self.machine.tell(*words)

    def on(self, device: int) -> int:
        return device % len(self.limits)

    def pick(self, choice: int) -> int:
        return sorted(self.blocks)[choice % len(self.blocks)]

    @rule(device=devices, stream=streams, size=st.integers(1, 9 * KIB))
    def allocate_small(self, device: int, stream: int, size: int) -> None:
        self.allocate(self.on(device), stream, size)

    @rule(device=devices, stream=streams, part=st.integers(2, 60), odd=st.integers(0, 4096))
    def allocate_large(self, device: int, stream: int, part: int, odd: int) -> None:
        self.allocate(self.on(device), stream, self.setting.capacity // part - odd)

    def allocate(self, device: int, stream: int, size: int) -> None:
        handle = self.handle(device, stream)
        kind, *rest = self.machine.ask("allocate", device, size, handle)
        if kind == "oom" and self.promised(device, size):
            # What still runs may hold memory; what is done may not.
            self.ask("drain")
            kind, *rest = self.machine.ask("allocate", device, size, handle)
            assert kind != "oom", (size, rest)
        if kind == "oom":
            return
        assert kind == "ok", rest
        address = int(rest[0])
        assert address % 512 == 0
        for other, block in self.blocks.items():
            assert address + size <= other or other + block.size <= address
        pool = next((p for p, place in self.pools.items() if place == (device, handle)), 0)
        self.pattern = self.pattern % 250 + 1
        self.blocks[address] = Block(device, handle, size, self.pattern, pool)
        self.freed.discard(address)
        self.kernel("write", address, handle)

    def promised(self, device: int, size: int) -> bool:
        """Whether the pages that live blocks touch and the request's fit the limit."""
        if not self.setting.fits_is_promised or self.pools or self.ended:
            return False
        page = self.setting.page
        pages: set[int] = set()
        for address, block in self.blocks.items():
            if block.device == device:
                around = SLAB if block.size <= SMALL else 0  # its slab lies about it
                begin, end = address - around, address + block.size + around
                pages.update(range(begin // page, (end - 1) // page + 1))
        missing = (max(size, SLAB if size <= SMALL else 0) - 1) // page + 2
        return (len(pages) + missing) * page <= self.limits[device]

    def kernel(self, kind: str, address: int, handle: int) -> None:
        block = self.blocks[address]
        self.ask(kind, block.device, handle, address, block.size, block.pattern)

    @precondition(lambda self: self.blocks)
    @rule(choice=choices)
    def free(self, choice: int) -> None:
        self.free_block(self.pick(choice))

    def free_block(self, address: int) -> None:
        self.kernel("check", address, self.blocks[address].stream)
        self.ask("free", address)
        del self.blocks[address]
        self.freed.add(address)

    @precondition(lambda self: self.freed)
    @rule(choice=choices)
    def free_twice(self, choice: int) -> None:
        address = sorted(self.freed)[choice % len(self.freed)]
        assert self.machine.ask("free", address)[0] == "error"

    @precondition(lambda self: self.blocks)
    @rule(choice=choices, stream=streams)
    def record_stream(self, choice: int, stream: int) -> None:
        address = self.pick(choice)
        block = self.blocks[address]
        handle = self.handle(block.device, stream)
        self.ask("record", address, handle)
        if handle == block.stream:
            self.kernel("check", address, handle)
            return
        # A user makes the reader wait for the writer.
        self.ask("order", block.device, block.stream, handle)
        self.kernel("check", address, handle)

    @rule(device=devices, stream=streams, count=st.integers(1, 12))
    def advance(self, device: int, stream: int, count: int) -> None:
        device = self.on(device)
        self.ask("advance", device, self.handle(device, stream), count)

    @rule()
    def drain(self) -> None:
        self.ask("drain")

    @rule(device=devices, size=st.sampled_from([1, MIB, 1 << 40]))
    def trim(self, device: int, size: int) -> None:
        self.ask("trim", self.on(device), size)

    @rule(device=devices, percent=st.integers(10, 100))
    def set_limit(self, device: int, percent: int) -> None:
        device = self.on(device)
        self.limits[device] = self.setting.capacity * percent // 100
        self.ask("limit", device, self.limits[device])

    @precondition(lambda self: len(self.pools) < 2)
    @rule(device=devices, stream=streams)
    def begin_pool(self, device: int, stream: int) -> None:
        device = self.on(device)
        place = (device, self.handle(device, stream))
        if place in self.pools.values():
            return
        self.pool_count += 1
        self.ask("begin", device, self.pool_count, place[1])
        self.pools[self.pool_count] = place

    @precondition(lambda self: self.pools)
    @rule(choice=choices)
    def end_pool(self, choice: int) -> None:
        pool = sorted(self.pools)[choice % len(self.pools)]
        device, _ = self.pools.pop(pool)
        self.ask("end", device, pool)
        self.ended[pool] = device

    @precondition(lambda self: self.ended)
    @rule(choice=choices)
    def release_pool(self, choice: int) -> None:
        pool = sorted(self.ended)[choice % len(self.ended)]
        self.ask("release", self.ended.pop(pool), pool)

    @invariant()
    def books_agree(self) -> None:
        if not self.limits:
            return
        mismatches, _ = self.ask("state")  # which audits too
        assert mismatches == 0
        for device in range(len(self.limits)):
            live = [block for block in self.blocks.values() if block.device == device]
            count, requested, allocated, active, reserved, held, *_ = self.ask("books", device)
            assert count == len(live)
            assert requested == sum(block.size for block in live)
            assert requested <= allocated <= active <= reserved
            assert reserved == held

    def teardown(self) -> None:
        if not self.limits:
            return
        for address in sorted(self.blocks):
            self.free_block(address)
        for pool in sorted(self.pools):
            device, _ = self.pools[pool]
            self.ask("end", device, pool)
            self.ended[pool] = device
        for pool, device in sorted(self.ended.items()):
            self.ask("release", device, pool)
        self.ask("drain")
        for device in range(len(self.limits)):
            self.ask("trim", device, 1 << 50)
            count, _, _, active, reserved, held, *_ = self.ask("books", device)
            assert (count, active, reserved, held) == (0, 0, 0, 0)
        assert self.ask("state")[0] == 0
        assert self.ask("end_of_life") == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", SETTINGS)
def test_random_programs(host_machine: HostMachine, name: str) -> None:
    class Machine(AllocatorMachine):
        machine = host_machine
        setting = SETTINGS[name]

    # The profile of conftest.py: dev 50 examples, GMA_EXAMPLES=20000 for a night.
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=60))


def test_a_wrong_write_would_be_seen(host_machine: HostMachine) -> None:
    host_machine.tell("new", 1, 24 * MIB, 64 * KIB, "strategy:paged")
    (address,) = host_machine.tell("allocate", 0, 3 * MIB, 4096)
    host_machine.tell("write", 0, 4096, address, 3 * MIB, 7)
    host_machine.tell("check", 0, 4096, address, 3 * MIB, 7)
    host_machine.tell("write", 0, 8192, address + 2 * MIB, 512, 8)  # nobody's business
    host_machine.tell("drain")
    assert host_machine.tell("state") == [0, 1]
    host_machine.tell("check", 0, 4096, address, 3 * MIB, 7)
    host_machine.tell("drain")
    assert host_machine.tell("state") == [1, 2]
