"""What can be measured without a GPU: recorded runs, through PyTorch's policies and ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from gpumem_alloc.cli.tables import print_replay
from gpumem_alloc.replay import DEFAULT_ALLOCATORS, replay
from gpumem_alloc.trace import TraceError, read_trace

from .report.picture import Bar, draw

TRACES = Path(__file__).resolve().parent / "traces"
INSTEAD = (
    "recorded runs are replayed, with addresses only, through models of PyTorch's policies and "
    "through our own code"
)


class ReplayError(Exception):
    """A recording that cannot be replayed."""


def bundled() -> list[Path]:
    """Return the recordings that come along."""
    return sorted(TRACES.glob("*.pickle.gz"))


def run(paths: Sequence[Path], as_json: bool, pictures: Path | None) -> None:
    """Replay and print; raises ReplayError."""
    console = Console()
    reports: dict[str, Any] = {}
    for path in paths:
        name = path.name.split(".")[0]
        try:
            trace = read_trace(path)
            reports[name] = replay(trace, DEFAULT_ALLOCATORS, progress=lambda _: None)
        except TraceError as error:
            raise ReplayError(
                f"{path} cannot be replayed.\n{error}\nGive a snapshot or a log of RMM's."
            ) from None
        if not as_json:
            console.rule(name, align="left")
            print_replay(console, reports[name], trace.notes)
    if as_json:
        print(json.dumps(reports))
    if pictures is not None:
        _draw(reports, pictures / "replay.png")
        Console(stderr=True).print(f"picture: {pictures / 'replay.png'}", soft_wrap=True)


def _draw(reports: dict[str, Any], path: Path) -> None:
    bars = [
        Bar(
            name,
            result["allocator"],
            None if result["oom"] else result["peak_reserved_bytes"],
            report["peak_live_bytes"],
        )
        for name, report in reports.items()
        for result in report["results"]
    ]
    draw(bars, "Memory reserved at its peak, by replay of recorded runs", "GiB", path)
