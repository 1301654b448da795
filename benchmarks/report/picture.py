"""Pictures: how they look, how they become files, and which ones the README has.

Needs matplotlib (the extras bench and report). Text is drawn as it is given: a name that came from
a file is never read as a formula.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..store import Results, ResultsError
from .selection import OURS, is_ours

GIB = 1 << 30
COLOURS = {
    "native": "#8a8f98",
    "native-expandable": "#b0772b",  # the name that replays have for it
    "expandable": "#b0772b",
    "cudaMallocAsync": "#7b5ea7",
    "no-caching": "#c0677b",
    "rmm-pool": "#4d8f5b",
    "rmm-arena": "#7aa874",
    "rmm-async": "#2f6f5e",
    OURS: "#1a73e8",
    f"{OURS}-lean": "#0b4fa8",
    f"{OURS}-fast": "#6fa3ee",
    f"{OURS}@stock": "#4aa3a2",
    "direct": "#9bb4e0",
}
OUR_OTHERS = ("#6fa3ee", "#3d5a98", "#7cc0d8", "#4aa3a2", "#9bb4e0")
OTHERS = ("#a5a58d", "#9c8f80", "#b7a99a", "#8d99ae", "#a1887f")
LIVE = "#d93025"
# What is drawn in this colour takes that of the page's text, so that it is read in dark and light.
INK = "#0b0c0d"
PNG_PIXELS_PER_INCH = 90


class NotInstalledError(ResultsError):
    """A library that pictures or reports need is missing; three lines."""


@dataclass(frozen=True)
class Bar:
    """One allocator on one workload; `held_bytes` None where it ran out of memory or failed."""

    group: str
    allocator: str
    held_bytes: int | None
    live_bytes: int


def need(module: str) -> Any:
    """Return a library's module. Raises NotInstalledError."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise NotInstalledError(
            f"No report or picture can be made: {name} is not installed.\n"
            "They are drawn with matplotlib and laid out with jinja2, which the allocator itself "
            "does not need.\n"
            "Run: python -m pip install matplotlib jinja2"
        ) from None


def colour(allocator: str) -> str:
    """Return the colour of an allocator, the same in every picture."""
    if allocator in COLOURS:
        return COLOURS[allocator]
    family = OUR_OTHERS if is_ours(allocator) else OTHERS
    return family[int(hashlib.sha256(allocator.encode()).hexdigest(), 16) % len(family)]


def figure(width: float, height: float, panels: int = 1) -> tuple[Any, Sequence[Any]]:
    """Return a figure and its panels, side by side."""
    matplotlib = need("matplotlib")
    matplotlib.rcParams["text.parse_math"] = False
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "gpumem_alloc"
    made = need("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    axes = made.subplots(1, panels, squeeze=False)[0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_facecolor("none")
    return made, list(axes)


def save_png(made: Any, path: Path, digest: str = "") -> None:
    """Write a figure; the digest of what it shows goes into the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Software": None, "Description": digest or None}
    made.savefig(path, dpi=PNG_PIXELS_PER_INCH, metadata=metadata, facecolor="white")


def svg(made: Any) -> str:
    """Return a figure as an element for a page: its own text's colour, no outside links."""
    _ink(made)
    text = io.StringIO()
    made.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    found = text.getvalue()
    found = found[found.index("<svg") :]
    found = re.sub(r"<metadata>.*?</metadata>", "", found, flags=re.DOTALL)
    found = re.sub(r"<!--.*?-->", "", found, flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", found))
    found = re.sub(r' id="([^"]*)"', lambda each: each[0] if each[1] in used else "", found)
    return found.replace(INK, "currentColor").replace("\n", " ").strip()


def _ink(made: Any) -> None:
    """Give everything that is text or axis the page's colour."""
    for text in made.findobj(need("matplotlib.text").Text):
        text.set_color(INK)
    for panel in made.axes:
        for spine in panel.spines.values():
            spine.set_edgecolor(INK)
        panel.tick_params(color=INK)
        if (legend := panel.get_legend()) is not None:
            legend.get_frame().set_alpha(0)


def draw(bars: list[Bar], title: str, unit: str, path: Path) -> None:
    """Save a PNG with one panel for each group. Raises NotInstalledError."""
    groups = list(dict.fromkeys(bar.group for bar in bars))
    made, panels = figure(1.2 + 3.4 * len(groups), 4.2, len(groups))
    for panel, group in zip(panels, groups, strict=True):
        held_panel(panel, [bar for bar in bars if bar.group == group])
        panel.set_title(group, fontsize=10)
    panels[0].set_ylabel(unit)
    made.suptitle(title, fontsize=11)
    save_png(made, path)


def held_panel(panel: Any, bars: Iterable[Bar], least: str = "in use") -> None:
    """Draw bars of what was held, each with a line at the least that it could be."""
    bars = list(bars)
    for place, bar in enumerate(bars):
        held_gib = (bar.held_bytes or 0) / GIB
        panel.bar(place, held_gib, color=colour(bar.allocator), width=0.7)
        text = "failed" if bar.held_bytes is None else f"{held_gib:.1f}"
        panel.text(place, held_gib, text, ha="center", va="bottom", fontsize=8)
        panel.plot([place - 0.45, place + 0.45], [bar.live_bytes / GIB] * 2, color=LIVE, lw=1.6)
    panel.plot([], [], color=LIVE, lw=1.6, label=least)
    panel.set_xticks(
        range(len(bars)), [bar.allocator for bar in bars], rotation=25, ha="right", fontsize=8
    )
    panel.legend(fontsize=8, loc="upper right")
    panel.margins(y=0.3)  # room for the legend above the highest bar's figure


def write_all(results: Results, folder: Path) -> list[Path]:
    """Write the README's pictures, of the newest setting. Raises NotInstalledError."""
    from . import readme_pictures
    from .summary import summarise

    newest = summarise(results)[:1]
    return [path for summary in newest for path in readme_pictures.write(summary, folder)]
