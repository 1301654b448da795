"""Where tensors were allocated and freed, as Python stacks.

They come from PyTorch's own history of memory, which the bridge keeps. It is off unless the program
turns it on, with record_stacks() or with torch.cuda.memory._record_memory_history(): a stack costs
about as much as an allocation. docs/fault-reports.md has what it costs.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from gpumem_alloc.errors import AllocatorError

_LONGEST_STACK = 32  # innermost frames that are kept of one
_BRIDGE = "gpumem_alloc._bridge"


class Frame(NamedTuple):
    """A line of Python; the innermost one comes first in a stack."""

    file: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.name}"


def record_stacks(max_entries: int = 200_000) -> None:
    """Record, from now on, the Python stack of each allocation and free on all devices.

    It is torch.cuda.memory._record_memory_history() with what a fault report needs: the newest
    `max_entries` of them, no C++ frames; with enabled=None that turns it off again. Raises
    AllocatorError without the bridge, since the stock door has no history.
    """
    bridge = sys.modules.get(_BRIDGE)
    if bridge is None or not bridge.is_installed():
        raise AllocatorError(
            "record_stacks() needs gpumem_alloc to serve CUDA memory through the bridge.\n"
            "The stock door has no way to ask for the history of memory.\n"
            'Call gpumem_alloc.enable(door="bridge") first.',
            "not_supported",
        )
    import torch

    torch.cuda.memory._record_memory_history(
        context="all", stacks="python", max_entries=max_entries
    )


def recorded() -> dict[int, list[dict[str, Any]]]:
    """Return PyTorch's history by device, oldest first; empty where it is off or cannot be had.

    It is asked for when a program has failed, so nothing is raised.
    """
    bridge, torch = sys.modules.get(_BRIDGE), sys.modules.get("torch")
    try:
        if bridge is None or torch is None or not bridge.is_installed():
            return {}
        if not torch._C._cuda_isHistoryEnabled():
            return {}
        traces = torch.cuda.memory._snapshot()["device_traces"]
    except Exception:
        return {}
    return dict(enumerate(traces))


def of_rows(rows: Any, trace: list[dict[str, Any]]) -> dict[str, dict[str, list[Frame]]]:
    """Return {allocation number: {"allocated": frames, "freed": frames}} for rows of a ledger.

    A ledger has one tensor at most for an address, the newest; so its allocation is the newest that
    the trace has there, and its free the newest one after that.
    """
    newest: dict[int, dict[str, list[Frame]]] = {}
    for event in trace:
        if event["action"] == "alloc":
            newest[event["addr"]] = {"allocated": _frames(event), "freed": []}
        elif event["action"] == "free_requested" and event["addr"] in newest:
            newest[event["addr"]]["freed"] = _frames(event)
    return {
        str(number): newest[address]
        for address, number in zip(
            rows["address"].tolist(), rows["allocation_number"].tolist(), strict=True
        )
        if address in newest
    }


def _frames(event: dict[str, Any]) -> list[Frame]:
    return [
        Frame(frame["filename"], int(frame["line"]), frame["name"])
        for frame in event.get("frames", [])[:_LONGEST_STACK]
    ]
