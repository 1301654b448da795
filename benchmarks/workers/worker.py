"""The child's side of process.py: runs one job in this process, and says what it measured.

    echo GO | python -m benchmarks.workers.worker --job '{"workload": "gnn", "allocator": "paged"}'

It must be a process of its own: an allocator is chosen once, before CUDA starts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import queue
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..allocators import choose, find, put_in_place
from ..workloads import WORKLOADS
from .card_memory import CardMemory
from .driver_calls import DriverCalls
from .job import Job, Row
from .process import LONGEST_ERROR, is_out_of_memory

SEED = 0
ORPHAN_SECONDS = 0.5
OUR_COUNTERS = (
    "num_sync_all_streams", "num_device_alloc", "num_device_free", "moved_chunks", "moved_bytes",
    "stream_waits", "leaked_handles",
)  # fmt: skip


class Channel:
    """The lines of the protocol; what anything else prints goes to stderr from here on."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._out = os.dup(1)
        os.dup2(2, 1)
        self._words: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.size: int | None = None  # another one than the job's; good after the first GO
        self.core: int | None = None  # that the main thread is kept on
        self._parent = os.getppid()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, line: str) -> None:
        left = f"{line}\n".encode()
        while left:
            left = left[os.write(self._out, left) :]

    def wait_for_go(self) -> None:
        self._words.get()

    def stay_on(self, core: int) -> None:
        """Keep the main thread on a core, and those that it starts later."""
        main = threading.main_thread().native_id
        assert main is not None
        with contextlib.suppress(OSError):  # one that this process may not use: the row tells
            os.sched_setaffinity(main, {core})
            self.core = core

    def _listen(self) -> None:
        """Note each GO, SIZE and CORE; where the runner is gone, nobody wants the rest."""
        begun = b""
        while text := os.read(0, 4096):
            *lines, begun = (begun + text).split(b"\n")
            for line in lines:
                if line.startswith(b"SIZE "):
                    self.size = int(line[5:])
                elif line.startswith(b"CORE "):
                    self.stay_on(int(line[5:]))
                elif line == b"GO":
                    self._words.put(line)
        time.sleep(ORPHAN_SECONDS)  # a parent that dies closes its files first
        if os.getppid() != self._parent:
            os._exit(1)


class Steps:
    """What is measured at the end of each step; times leave the measuring itself out."""

    def __init__(self, torch: Any, channel: Channel | None, driver: DriverCalls | None) -> None:
        self.ms: list[float] = []
        self.losses: list[str] = []
        self._torch = torch
        self._channel = channel  # only with turns
        self._driver = driver

    def begin(self) -> None:
        if self._channel is not None:
            self._channel.wait_for_go()
        self._begin = time.perf_counter()

    def mark(self, loss: Any) -> None:
        with contextlib.nullcontext() if self._driver is None else self._driver.step_ends():
            self._torch.cuda.synchronize()
            ms = 1e3 * (time.perf_counter() - self._begin)
            self.losses.append("" if loss is None else float(loss).hex())
        if self._channel is not None:
            self._channel.say(f"STEP {len(self.ms)} {ms:.4f}")
        self.ms.append(round(ms, 4))
        self.begin()


def make_deterministic(torch: Any) -> None:
    """Let torch take kernels that add in a fixed order; CUBLAS_WORKSPACE_CONFIG must be set."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False


def run_workload(torch: Any, job: Job, steps: Steps) -> None:
    """Run the job's workload to its end."""
    workload = WORKLOADS[job.workload]
    if job.size is None:
        steps.begin()
        workload.run(torch, job.steps or workload.steps, steps.mark)
        return
    if workload.sized is None:
        raise ValueError(f"{job.workload} has no size that could be set")
    steps.begin()
    workload.sized.run(torch, job.size, job.steps or workload.sized.steps, steps.mark)


def statistics(torch: Any) -> Row:
    """Return the allocator's own figures; those that it does not tell are None."""
    try:
        stats = torch.cuda.memory_stats()
    except RuntimeError:  # RMM's has none
        stats = {}
    figures = {
        "live_peak_bytes": stats.get("allocated_bytes.all.peak"),
        "requested_peak_bytes": stats.get("requested_bytes.all.peak"),
        "reserved_peak_bytes": stats.get("reserved_bytes.all.peak"),
        "allocations": stats.get("allocation.all.allocated"),
    }
    told = {name: figure or None for name, figure in figures.items()}  # 0 after a run: not counted
    counts = told["allocations"] is not None
    return told | {
        "alloc_retries": stats["num_alloc_retries"] if counts else None,
        "ooms": stats["num_ooms"] if counts else None,
    }


def our_counters() -> dict[str, int]:
    """Return our own counters. Raises RuntimeError if something went wrong on the way."""
    import gpumem_alloc

    stats = gpumem_alloc.stats()
    gpumem_alloc.audit()
    if problems := gpumem_alloc.errors():
        raise RuntimeError(f"frees or hooks failed: {problems}")
    return {name: stats[name] for name in OUR_COUNTERS}


@contextlib.contextmanager
def _card(job: Job) -> Iterator[CardMemory | None]:
    if not job.card:
        yield None
        return
    with CardMemory(0) as card:
        yield card


def measure(job: Job, channel: Channel) -> Row:
    """Do the job, and return what is to be added to its row."""
    choose(job.allocator, os.environ)
    if job.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with _card(job) as card:  # the poller starts while this process imports
        torch: Any = importlib.import_module("torch")
        for module in (*find(job.allocator).modules, *WORKLOADS[job.workload].libraries):
            importlib.import_module(module)
        driver = DriverCalls.build() if job.driver_calls else None
        if card is not None:
            card.wait_ready()
        channel.say("READY")
        channel.wait_for_go()
        if channel.size is not None:
            job = replace(job, size=channel.size)
        begin = time.perf_counter()
        if card is not None:
            card.begin()
        if driver is not None and not driver.start():
            driver = None
        door = put_in_place(torch, job.allocator)
        random.seed(SEED)
        torch.manual_seed(SEED)
        if job.deterministic:
            make_deterministic(torch)
        torch.zeros(1, device="cuda")
        startup_s = time.perf_counter() - begin
        channel.say("STARTED")
        steps = Steps(torch, channel if job.turns else None, driver)
        run_workload(torch, job, steps)
        figures = None if driver is None else driver.figures()
    row: Row = {} if door is None else {"door": door}
    row |= {
        "code_id": WORKLOADS[job.workload].code_id,
        "startup_s": round(startup_s, 3),
        "run_s": round(sum(steps.ms[1:]) / 1e3, 4),  # the first one makes the model
        "step_ms": steps.ms,
        "losses": steps.losses,
    }
    if job.turns:
        row["core"] = channel.core
    row |= statistics(torch)
    row["card"] = None if card is None or card.seen is None else vars(card.seen)
    row["driver"] = figures
    if door is not None:
        row["counters"] = our_counters()
    return row


def failure(error: BaseException) -> Row:
    """Return the fields of a row for what was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " | ".join([f"{type(error).__name__}: {lines[0] if lines else ''}", *lines[1:]])
    torch: Any = sys.modules.get("torch")  # half imported, perhaps
    kinds = (MemoryError, getattr(torch, "OutOfMemoryError", MemoryError))
    return {
        "error": text[:LONGEST_ERROR],
        "out_of_memory": isinstance(error, kinds) or is_out_of_memory(text),
    }


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Job.from_json, required=True, help="a Job as JSON")
    job: Job = parser.parse_args().job
    channel = Channel()
    try:
        row = measure(job, channel)
    except BaseException as error:  # of any kind: the runner is told, and goes on
        traceback.print_exc()
        row = failure(error)
    channel.say(f"ROW {json.dumps(row)}")
    return 1 if "error" in row else 0


if __name__ == "__main__":
    sys.exit(main())
