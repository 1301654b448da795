"""The README's pictures, each with a digest of what it shows, so that a test finds an old one.

The digest is of the data and not of the pixels, which depend on matplotlib's version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..host import scale_curves
from ..store import Row
from . import charts
from .cells import rounds
from .intervals import Interval
from .picture import Bar, figure, held_panel, need, save_png
from .readme_table import COLUMNS, shown
from .summary import Summary

MOST_PANELS = 5


@dataclass(frozen=True)
class Picture:
    """One PNG: what it shows, and how it is drawn."""

    name: str
    says: str
    data: Any
    draw: Callable[[], Any]

    @property
    def digest(self) -> str:
        """Return what the file must carry."""
        return hashlib.sha256(json.dumps(self.data).encode()).hexdigest()


def pictures(summary: Summary) -> list[Picture]:
    """Return the pictures for which there are rows."""
    found = [_card_memory(summary), _over_time(summary), _step_times(summary)]
    return [picture for picture in found if picture.data]


def write(summary: Summary, folder: Path) -> list[Path]:
    """Write every picture whose file does not show it already. Raises NotInstalledError."""
    return [_write(picture, folder) for picture in pictures(summary)]


def _write(picture: Picture, folder: Path) -> Path:
    path = folder / f"{picture.name}.png"
    if not is_current(path, picture):
        save_png(picture.draw(), path, picture.digest)
    return path


def is_current(path: Path, picture: Picture) -> bool:
    """Say whether a file shows what the results say."""
    return path.is_file() and picture.digest.encode() in path.read_bytes()


def _card_memory(summary: Summary) -> Picture:
    panels: dict[str, list[Bar]] = {}
    for workload in shown(summary):
        entries = [
            entry
            for name in COLUMNS
            if (entry := summary.entry(workload, name)) and entry.peaks and entry.peaks.card_bytes
        ]
        if len(entries) > 1 and len(panels) < MOST_PANELS:
            panels[workload] = charts.bars(summary, entries)

    def draw() -> Any:
        made, axes = figure(1 + 2.3 * len(panels), 3.2, len(panels))
        for panel, (workload, bars) in zip(axes, panels.items(), strict=True):
            held_panel(panel, bars, charts.LEAST)
            panel.set_title(workload, fontsize=10)
        for panel in axes[1:]:  # the line means the same in each, and hides what is behind it
            panel.get_legend().remove()
        axes[0].set_ylabel("GiB on the card, at the peak")
        return made

    return Picture(
        "card-memory",
        "The card's memory at its peak, by workload and allocator",
        {name: [vars(bar) for bar in bars] for name, bars in panels.items()},
        draw,
    )


def _over_time(summary: Summary) -> Picture:
    workload = next(
        (name for name in shown(summary) if len(charts.timelines(summary, name)) > 1), None
    )
    lines = charts.timelines(summary, workload) if workload else {}
    return Picture(
        "over-time", f"Memory on the card over time, {workload}",
        [workload, lines] if lines else [],
        lambda: charts.over_time(summary, str(workload)),
    )  # fmt: skip


def _step_times(summary: Summary) -> Picture:
    data = [
        [entry.workload, rounds(entry.times), *(round(each, 6) for each in _ends(ratio))]
        for entry, ratio in charts.our_ratios(summary)
    ]
    says = "Step time of ours against the fastest of PyTorch's, 95 %; grey decides nothing"
    return Picture("step-times", says, data, lambda: charts.step_intervals(summary))


def _ends(ratio: Interval) -> tuple[float, float, float]:
    return ratio.low, ratio.median, ratio.high


def scale_picture(rows: list[Row]) -> Picture:
    """Return the picture of cost against number, from rows of scale.py."""
    kept = [[row["allocator"], row.get("curves")] for row in rows]

    def draw() -> Any:
        need("matplotlib").use("Agg")
        return scale_curves.make_figure(need("matplotlib.pyplot"), rows)

    return Picture("scale", "Cost against number", kept, draw)


def write_scale(rows: list[Row], folder: Path) -> Path:
    """Write the picture of cost against number. Raises NotInstalledError."""
    return _write(scale_picture(rows), folder)
