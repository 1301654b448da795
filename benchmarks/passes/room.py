"""What this machine can hold at once: the card's memory that others leave free, and the host's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..workers.card_memory import nvml_handle

SPARE_BYTES = 2 << 30
SPARE_SHARE = 0.02
HOST_BYTES = 5 << 30  # of a process, libraries and all


@dataclass(frozen=True)
class Room:
    """Bytes; None where nothing says how many."""

    free_bytes: int | None  # on the card, now
    total_bytes: int | None
    host_bytes: int | None

    def holds(self, needs_bytes: Sequence[int]) -> bool:
        """Say whether processes with these peaks fit together."""
        if self.free_bytes is None:
            return False
        need_bytes = sum(needs_bytes) * (1 + SPARE_SHARE) + SPARE_BYTES
        on_host = self.host_bytes is None or len(needs_bytes) * HOST_BYTES <= self.host_bytes
        return need_bytes <= self.free_bytes and on_host


def ask(device: int = 0) -> Room:
    """Ask NVML and the kernel; starts nothing on the card."""
    free_bytes, total_bytes = _card(device)
    return Room(free_bytes, total_bytes, _host())


def _card(device: int) -> tuple[int | None, int | None]:
    try:
        import pynvml

        pynvml.nvmlInit()
        memory: Any = pynvml.nvmlDeviceGetMemoryInfo(nvml_handle(pynvml, device))
    except Exception:  # of NVML's many kinds, and pynvml may be missing: nothing is known then
        return None, None
    return int(memory.total - memory.used), int(memory.total)


def _host() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration, ValueError, IndexError):
        return None
