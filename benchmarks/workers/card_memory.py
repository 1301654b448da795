"""Polls the card's used memory from a process of its own, so that no lock of ours slows it.

    with CardMemory(0) as card:  # the process starts
        ...
        card.begin()             # from here on it polls
        ...
    card.seen

The process asks NVML, or where that is missing the driver (cuMemGetInfo). Both count everything on
the card; what was used at begin() is taken off, so nothing else may run there.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from .children import command, import_path

SOURCES = ("nvml", "cuMemGetInfo")  # best first
POLL_SECONDS = 0.001
PARENT_SECONDS = 1.0  # between looks whether anybody still wants the answer
POINTS = 300  # of the timeline, at most
BUCKET_MS = 10.0  # at first


@dataclass(frozen=True)
class Seen:
    """What was seen; bytes are above what was used at the start."""

    source: str  # "nvml" or "cuMemGetInfo"
    start_bytes: int
    peak_bytes: int
    polls_per_second: float
    longest_gap_ms: float
    timeline: list[tuple[float, int]]  # ms since begin() and bytes: the largest of each bucket


class Timeline:
    """The largest value of each stretch of time; stretches double when there are too many."""

    def __init__(self, points: int = POINTS, bucket_ms: float = BUCKET_MS) -> None:
        self._points = points
        self._bucket_ms = bucket_ms
        self._largest: dict[int, tuple[float, int]] = {}  # by number of the bucket

    def add(self, ms: float, value: int) -> None:
        self._keep(int(ms / self._bucket_ms), (ms, value))
        while len(self._largest) > self._points:
            kept, self._largest = self._largest, {}
            self._bucket_ms *= 2
            for bucket, point in kept.items():
                self._keep(bucket // 2, point)

    def points(self) -> list[tuple[float, int]]:
        return [(round(ms, 2), value) for ms, value in self._largest.values()]

    def _keep(self, bucket: int, point: tuple[float, int]) -> None:
        if bucket not in self._largest or point[1] > self._largest[bucket][1]:
            self._largest[bucket] = point


class CardMemory:
    """Polls from begin() to the end; `seen` is None until then, and where nothing can be asked."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.seen: Seen | None = None

    def __enter__(self) -> CardMemory:
        self._child = subprocess.Popen(
            command("workers.card_memory", str(self.device)), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": import_path()},
            start_new_session=True,  # Ctrl-C is for whoever asks
        )  # fmt: skip
        self._is_ready = False
        return self

    def wait_ready(self) -> None:
        """Wait until the process can poll, or knows that it cannot."""
        if not self._is_ready:
            self._answer()
            self._is_ready = True

    def begin(self) -> None:
        """Take what is used now as the start, and poll from here on."""
        self.wait_ready()
        assert self._child.stdin is not None
        try:
            self._child.stdin.write("begin\n")
            self._child.stdin.flush()
        except OSError:  # it has ended, having nothing to ask
            return
        self._answer()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            answer, _ = self._child.communicate(timeout=60)  # closes its stdin, which ends it
            found = json.loads(answer.strip().splitlines()[-1])
            points = [(ms, used) for ms, used in found.pop("timeline")]
            self.seen = Seen(**found, timeline=points)
        except (OSError, ValueError, IndexError, TypeError, KeyError, AttributeError):
            self.seen = None  # it had nothing to ask, or never began
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()

    def _answer(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline()


def _nvml_reader(device: int) -> Callable[[], int]:
    import pynvml

    pynvml.nvmlInit()
    handle = nvml_handle(pynvml, device)
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def nvml_handle(pynvml: Any, device: int) -> Any:
    """Return NVML's handle of a CUDA device; CUDA_DEVICE_ORDER must be PCI_BUS_ID."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    name = names[device] if names else str(device)
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def _driver_reader(device: int) -> Callable[[], int]:
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        if (result := getattr(driver, name)(*arguments)) != 0:
            raise OSError(f"{name} failed with {result}")

    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()

    def used_bytes() -> int:
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value

    return used_bytes


def reader(device: int, sources: tuple[str, ...] = SOURCES) -> tuple[str, Callable[[], int]] | None:
    """Return who can be asked for the bytes used on a device, and how; None if nobody."""
    make = {"nvml": _nvml_reader, "cuMemGetInfo": _driver_reader}
    for source in sources:
        try:
            used_bytes = make[source](device)
            used_bytes()
        except Exception as error:  # of NVML's many kinds, none of which matters here
            print(f"card memory: not from {source}: {error}", file=sys.stderr)
        else:
            return source, used_bytes
    return None


def poll(source: str, used_bytes: Callable[[], int], is_over: Callable[[], bool]) -> Seen:
    """Poll until it is over; `is_over` waits for a moment."""
    timeline = Timeline()
    begin = last = time.perf_counter()
    start_bytes = used_bytes()
    print("begun", flush=True)
    timeline.add(0.0, 0)
    peak_bytes, count, longest_gap_s, is_last = 0, 0, 0.0, False
    while not is_last:
        is_last = is_over()  # one more look after the end, so that there is one at all
        above_bytes = used_bytes() - start_bytes
        now = time.perf_counter()
        peak_bytes = max(peak_bytes, above_bytes)
        timeline.add(1e3 * (now - begin), above_bytes)
        longest_gap_s = max(longest_gap_s, now - last)
        last = now
        count += 1
    return Seen(
        source=source,
        start_bytes=start_bytes,
        peak_bytes=peak_bytes,
        polls_per_second=round(count / max(last - begin, POLL_SECONDS), 1),
        longest_gap_ms=round(1e3 * longest_gap_s, 2),
        timeline=timeline.points(),
    )


def main() -> None:
    """Poll from a line on stdin until stdin ends, or whoever asked is gone."""
    device = int(sys.argv[1])
    found = reader(device, SOURCES[:1])
    print("ready", flush=True)
    if not os.read(0, 64):
        return
    # The driver wants a context, which holds memory: not while others are measured.
    found = found or reader(device, SOURCES[1:])
    if found is None:
        return
    parent, looked = os.getppid(), time.perf_counter()

    def is_over() -> bool:
        nonlocal looked
        if select.select([0], [], [], POLL_SECONDS)[0]:
            return True
        if time.perf_counter() - looked > PARENT_SECONDS:
            looked = time.perf_counter()
            return os.getppid() != parent
        return False

    print(json.dumps(asdict(poll(*found, is_over))))


if __name__ == "__main__":
    main()
