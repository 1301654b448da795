"""Pictures of results: bars of memory held, beside a line at what was in use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

GIB = 1 << 30
COLOURS = {"native": "#9aa0a6", "native-expandable": "#5f6368", "expandable": "#5f6368"}
OURS = ("#1a73e8", "#7baaf7", "#174ea6", "#aecbfa")


@dataclass(frozen=True)
class Bar:
    """One allocator on one workload; `held_bytes` None where it ran out of memory or failed."""

    group: str
    allocator: str
    held_bytes: int | None
    live_bytes: int


def draw(bars: list[Bar], title: str, unit: str, path: Path) -> None:
    """Save a PNG with one panel for each group."""
    groups = list(dict.fromkeys(bar.group for bar in bars))
    figure, panels = pyplot.subplots(
        1, len(groups), figsize=(1.2 + 3.4 * len(groups), 4.2), squeeze=False
    )
    for panel, group in zip(panels[0], groups, strict=True):
        _panel(panel, [bar for bar in bars if bar.group == group])
        panel.set_title(group, fontsize=10)
    panels[0][0].set_ylabel(unit)
    figure.suptitle(title, fontsize=11)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(panel: Any, bars: list[Bar]) -> None:
    ours = iter(OURS * len(bars))
    for place, bar in enumerate(bars):
        colour = COLOURS.get(bar.allocator) or next(ours)
        held_gib = (bar.held_bytes or 0) / GIB
        panel.bar(place, held_gib, color=colour, width=0.7)
        text = "failed" if bar.held_bytes is None else f"{held_gib:.1f}"
        panel.text(place, held_gib, text, ha="center", va="bottom", fontsize=8)
        panel.plot(
            [place - 0.45, place + 0.45], [bar.live_bytes / GIB] * 2, color="#d93025", lw=1.6
        )
    panel.plot([], [], color="#d93025", lw=1.6, label="in use")
    panel.set_xticks(
        range(len(bars)), [bar.allocator for bar in bars], rotation=25, ha="right", fontsize=8
    )
    panel.legend(fontsize=8, loc="upper right")
    panel.margins(y=0.15)
    panel.spines[["top", "right"]].set_visible(False)
