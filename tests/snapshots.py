"""Small traces made by hand, and the same ones cut so that they begin in the middle of a run."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

Entry = dict[str, Any]
BASE = 0x7F0000000000
TIME_US = 1_790_000_000_000_000


def entry(action: str, address: int, size: int, stream: int = 0, time_us: int = 0) -> Entry:
    """An event as PyTorch writes it; addresses count from BASE, times from TIME_US."""
    return {
        "action": action,
        "addr": BASE + address,
        "size": size,
        "stream": stream,
        "time_us": TIME_US + time_us,
        "frames": [],
    }


def freed(address: int, size: int, stream: int = 0, time_us: int = 0) -> list[Entry]:
    """A free that is complete at once."""
    return [
        entry(action, address, size, stream, time_us)
        for action in ("free_requested", "free_completed")
    ]


def block(address: int, size: int, state: str = "active_allocated") -> Entry:
    """A block of a segment."""
    return {"address": BASE + address, "size": size, "requested_size": size, "state": state}


def segment(address: int, size: int, blocks: list[Entry], **more: Any) -> Entry:
    """A segment of the default stream; its blocks must tile it."""
    assert sum(piece["size"] for piece in blocks) == size
    fields = {
        "device": 0,
        "address": BASE + address,
        "total_size": size,
        "stream": 0,
        "segment_type": "small" if size <= 2 << 20 else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": blocks,
    }
    return {**fields, **more}


def snapshot(entries: list[Entry], segments: list[Entry] | None = None) -> dict[str, Any]:
    """A snapshot of one device."""
    return {"segments": segments or [], "device_traces": [entries]}


def write(path: Path, content: object) -> Path:
    """Write a pickle, gzipped if the name says so."""
    data = pickle.dumps(content)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
