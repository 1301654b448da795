"""Curves of cost against number, as a table and as a picture.

A curve's exponent is the slope of log cost against log number by least squares: 0 where the cost
stays, 1 where it doubles with the number. Where a cost of ours grows, the steepest slope between
two neighbouring points is named too, which a sudden rise shows in.
"""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path
from typing import Any

from ..allocators import find

Row = dict[str, Any]
Point = tuple[float, float]
# By the first word of a curve: what is counted. By the whole name, else: what the cost is.
COUNTED = {"live": "live blocks", "streams": "streams", "threads": "threads", "held": "GB held"}
UNITS = {"held trim": "ms/GB", "held growth": "ms/GB", "streams idle": "MiB each"}
PAIR_UNIT = "ns a pair"
STEEP = 0.1  # an exponent above it is named
HOW_TO_READ = (
    "Each cell: the cost at the least number → at the greatest, and the exponent over all points: "
    "0 where the cost stays, 1 where it doubles with the number."
)
ORDER = ("live small", "live medium", "live large", "streams", "threads", "held")
# As in benchmarks/report/picture.py.
COLOURS = {"native": "#8a8f98", "expandable": "#b0772b", "cudaMallocAsync": "#7b5ea7"}
OURS = "#1a73e8"
PANELS_IN_ROW = 4
FEW = 1000  # below it every number has its own tick


def unit(curve: str) -> str:
    """Return what a curve's cost is counted in."""
    return UNITS.get(curve, PAIR_UNIT)


def curves(rows: list[Row], allocator: str) -> dict[str, list[Point]]:
    """Return each curve of an allocator, the median over its runs at each number."""
    found: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        if row["allocator"] == allocator:
            for curve, points in row.get("curves", {}).items():
                for number, cost, *_ in points:
                    found.setdefault(curve, {}).setdefault(number, []).append(cost)
    return {
        curve: [(number, statistics.median(costs)) for number, costs in sorted(points.items())]
        for curve, points in found.items()
    }


def slopes(points: list[Point]) -> list[tuple[float, float]]:
    """Return the slope after each number that has a next one."""
    usable = [(math.log(number), math.log(cost)) for number, cost in points if cost > 0]
    return [
        (math.exp(left[0]), (right[1] - left[1]) / (right[0] - left[0]))
        for left, right in itertools.pairwise(usable)
    ]


def exponent(points: list[Point]) -> float | None:
    """Return the slope by least squares; None with less than two points above zero."""
    usable = [(math.log(number), math.log(cost)) for number, cost in points if cost > 0]
    if len(usable) < 2:
        return None
    numbers, costs = zip(*usable, strict=True)
    return statistics.linear_regression(numbers, costs).slope


def names(rows: list[Row]) -> list[str]:
    """Return the curves that any allocator has, in the order of a table."""
    every = {curve for row in rows for curve in row.get("curves", {})}
    first = [curve for start in ORDER for curve in sorted(every) if curve.startswith(start)]
    return [*dict.fromkeys(first), *sorted(every.difference(first))]


def render(rows: list[Row]) -> str:
    """Return the table: cost at the least and the greatest number, and the exponent."""
    allocators = list(dict.fromkeys(row["allocator"] for row in rows))
    by_name = {name: curves(rows, name) for name in allocators}
    lines = [f"| cost | counted | {' | '.join(allocators)} |", "|---" * (2 + len(allocators)) + "|"]
    for curve in names(rows):
        found = [by_name[name].get(curve, []) for name in allocators]
        ends = _ends(found)
        cells = [_cell(points, ends) for points in found]
        counted = f"{COUNTED.get(curve.split()[0], '')}, {' → '.join(map(_number, ends))}"
        lines.append(f"| {curve}, {unit(curve)} | {counted} | {' | '.join(cells)} |")
    lines += ["", HOW_TO_READ]
    lines += [f"{row['allocator']}: {row['error']}." for row in rows if "error" in row]
    for name, reasons in left_out(rows).items():
        lines.append(f"Left out, {name}: {'; '.join(reasons)}.")
    return "\n".join(lines)


def left_out(rows: list[Row]) -> dict[str, list[str]]:
    """Return what was not measured, and why, by allocator."""
    found: dict[str, list[str]] = {}
    for row in rows:
        known = found.setdefault(row["allocator"], [])
        known += [reason for reason in row.get("left_out", []) if reason not in known]
    return {name: reasons for name, reasons in found.items() if reasons}


def _ends(found: list[list[Point]]) -> tuple[float, float]:
    """Return the least and the greatest number that any of the curves has."""
    numbers = [number for points in found for number, _ in points]
    return min(numbers, default=0), max(numbers, default=0)


def _cell(points: list[Point], ends: tuple[float, float]) -> str:
    if not points:
        return "–"
    (first, least), (last, most) = points[0], points[-1]
    text = _cost(least) if first == ends[0] else f"{_cost(least)} at {_number(first)}"
    slope = exponent(points)
    if slope is None:
        return text
    at = "" if last == ends[1] else f" at {_number(last)}"
    return f"{text} → {_cost(most)}{at}, {slope:.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _cost(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def steep(rows: list[Row], limit: float = STEEP) -> list[str]:
    """Name the costs of ours that grow with the number of blocks or streams, one line each."""
    found = []
    for allocator in dict.fromkeys(row["allocator"] for row in rows):
        if find(allocator).family != "ours":
            continue
        for curve, points in curves(rows, allocator).items():
            slope = exponent(points)
            counts = curve.startswith(("live", "streams")) and slope is not None
            if counts and slope is not None and slope > limit:
                at, steepest = max(slopes(points), key=lambda each: each[1])
                found.append(
                    f"{allocator}, {curve}: exponent {slope:.2f}, {steepest:.2f} from {at:,.0f} on"
                )
    return found


def draw(rows: list[Row], path: Path) -> None:
    """Save a PNG, one log-log panel for each curve. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = make_figure(pyplot, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def make_figure(pyplot: Any, rows: list[Row]) -> Any:
    """Return the picture, for whoever saves it in another form."""
    every = names(rows)
    columns = min(PANELS_IN_ROW, max(1, len(every)))
    lines = max(1, math.ceil(len(every) / columns))
    figure, panels = pyplot.subplots(
        lines, columns, figsize=(3.3 * columns, 2.6 * lines + 0.5), squeeze=False
    )
    allocators = list(dict.fromkeys(row["allocator"] for row in rows))
    by_name = {name: curves(rows, name) for name in allocators}
    flat = [panel for line in panels for panel in line]
    for panel, curve in zip(flat, every, strict=False):
        for name in allocators:
            _line(panel, name, by_name[name].get(curve, []))
        _scale(panel, [by_name[name].get(curve, []) for name in allocators])
        panel.set_title(curve, fontsize=9)
        panel.set_xlabel(COUNTED.get(curve.split()[0], ""), fontsize=8)
        panel.set_ylabel(unit(curve), fontsize=8)
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in flat[len(every) :]:
        panel.set_visible(False)
    handles, labels = flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=max(1, len(labels)), fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / (2.6 * lines + 0.5)))
    return figure


def _scale(panel: Any, lines: list[list[Point]]) -> None:
    """Set logarithmic scales of whole decades, two at least, so that slopes look as they are."""
    costs = [cost for line in lines for _, cost in line if cost > 0]
    numbers = sorted({number for line in lines for number, _ in line})
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter(lambda value, _: _tick(value))
    panel.yaxis.set_major_formatter(lambda value, _: _tick(value))
    panel.minorticks_off()
    if numbers and numbers[-1] < FEW:
        panel.set_xticks(numbers)
    if costs:
        low, high = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
        panel.set_ylim(10.0**low, 10.0 ** max(high, low + 2))


def _tick(value: float) -> str:
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,g}"


def _line(panel: Any, allocator: str, points: list[Point]) -> None:
    shown = [(number, cost) for number, cost in points if cost > 0]
    colour = COLOURS.get(allocator, OURS)
    numbers, costs = [number for number, _ in shown], [cost for _, cost in shown]
    panel.plot(numbers, costs, color=colour, marker="o", ms=3, lw=1.4, label=allocator)
