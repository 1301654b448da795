"""Polls the card's used memory from a process of its own, so that no lock of ours slows it.

    with CardMemory(0) as card:
        ...
    card.peak

The process asks NVML, or where that is missing the driver (cuMemGetInfo). Both count everything on
the card; what was used when polling began is taken off, so nothing else may run there.
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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

POLL_SECONDS = 0.001
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Peak:
    """What was seen; bytes are above what was used at the start."""

    source: str  # "nvml" or "cuMemGetInfo"
    start_bytes: int
    peak_bytes: int
    polls_per_second: float
    longest_gap_ms: float


class CardMemory:
    """Polls from entry to exit; `peak` is None until then, and where nothing can be asked."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.peak: Peak | None = None

    def __enter__(self) -> CardMemory:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.card_memory", str(self.device)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._child.stdout is not None
        self._child.stdout.readline()  # polling has begun, or there is nothing to poll
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        answer, _ = self._child.communicate(timeout=60)  # closes its stdin, which ends it
        self.peak = Peak(**json.loads(answer)) if answer.strip() else None


def _nvml_reader(device: int) -> Callable[[], int]:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(nvml_index(device))
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def nvml_index(device: int) -> int:
    """Return NVML's number of a CUDA device; CUDA_DEVICE_ORDER must be PCI_BUS_ID."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return int(names[device]) if names and all(name.isdigit() for name in names) else device


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


def reader(device: int) -> tuple[str, Callable[[], int]] | None:
    """Return who can be asked for the bytes used on a device, and how; None if nobody."""
    for source, make in (("nvml", _nvml_reader), ("cuMemGetInfo", _driver_reader)):
        try:
            used_bytes = make(device)
            used_bytes()
        except Exception as error:  # of NVML's many kinds, none of which matters here
            print(f"card memory: not from {source}: {error}", file=sys.stderr)
        else:
            return source, used_bytes
    return None


def main() -> None:
    """Poll until stdin ends."""
    found = reader(int(sys.argv[1]))
    print("ready", flush=True)
    if found is None:
        return
    source, used_bytes = found
    start_bytes = peak_bytes = used_bytes()
    begin = last = time.perf_counter()
    count, longest_gap = 0, 0.0
    while not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        peak_bytes = max(peak_bytes, used_bytes())
        now = time.perf_counter()
        longest_gap = max(longest_gap, now - last)
        last = now
        count += 1
    seen = Peak(
        source=source,
        start_bytes=start_bytes,
        peak_bytes=peak_bytes - start_bytes,
        polls_per_second=round(count / max(last - begin, POLL_SECONDS), 1),
        longest_gap_ms=round(1e3 * longest_gap, 2),
    )
    print(json.dumps(vars(seen)))


if __name__ == "__main__":
    main()
