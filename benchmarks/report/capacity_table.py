"""Tables of what fits: the largest size under a limit, and runs with no margin."""

from __future__ import annotations

from collections.abc import Sequence

from ..passes.no_margin import time_ratio
from ..store import Row
from .cells import LOST, NOTHING, markdown, plain
from .readme_table import COLUMNS, SHORT, sentences
from .selection import OURS
from .summary import Summary
from .verdicts import CAPACITY, NO_MARGIN, holds_as_much, newest, verdicts


def render(summary: Summary, source: str) -> str:
    """Return both tables, each where there are rows; empty without any."""
    parts = [part for part in (_capacity(summary), _no_margin(summary)) if part]
    return "\n".join([*parts, f"{source}\n"]) if parts else ""


def limit_name(limit_gb: float | None) -> str:
    """Write a limit."""
    return "the card" if limit_gb is None else f"{limit_gb:g} GiB"


def sizes(summary: Summary) -> dict[tuple[str, float | None], dict[str, Row]]:
    """Return the capacity rows by workload and limit, then by allocator."""
    found: dict[tuple[str, float | None], dict[str, Row]] = {}
    for row in newest(summary, "capacity"):
        place = row["workload"], row["limit_gb"]
        found.setdefault(place, {})[row["allocator"]] = row
    return found


def _capacity(summary: Summary) -> str:
    found = sizes(summary)
    if not found:
        return ""
    head = ["workload", "limit", "counted", *(SHORT[name] for name in COLUMNS)]
    head += ["ours over default", "ours over expandable"]
    lines = [_line(*place, by_name) for place, by_name in found.items()]
    said = [each for each in verdicts(summary, [OURS]) if each.measure == CAPACITY]
    return (
        f"{markdown(head, lines)}\n"
        "The largest size that ran under the limit, found by bisection to 2 %, each try in a "
        "process of its own; the largest in bold; ≥: the search was cut short; –: not run; ✗: "
        "less fits with ours.\n"
        f"{sentences(said)}"
    )


def _line(workload: str, limit_gb: float | None, by_name: dict[str, Row]) -> Sequence[str]:
    found: dict[str, int | None] = {name: row.get("size") for name, row in by_name.items()}
    best = max((size for name in COLUMNS if (size := found.get(name))), default=None)
    unit = next((row["unit"] for row in by_name.values() if row.get("unit")), "")

    def cell(name: str) -> str:
        size = found.get(name)
        if name not in by_name:
            return NOTHING
        if size is None:
            return "failed" if "error" in by_name[name] else "none fits"
        least = "" if by_name[name].get("complete", True) else "≥ "
        ended = ", then an error" if "error" in by_name[name] else ""
        return f"**{least}{size:,}**{ended}" if size == best else f"{least}{size:,}{ended}"

    def over(name: str) -> str:
        mine, other = found.get(OURS), found.get(name)
        if not mine or not other:
            return NOTHING
        if holds_as_much(by_name[OURS], by_name[name]) is None:
            return NOTHING
        return f"{100 * (mine / other - 1):+.1f} %" + (LOST if mine < other else "")

    shown = [cell(name) for name in COLUMNS]
    head = [plain(workload), limit_name(limit_gb), plain(unit)]
    return [*head, *shown, over("native"), over("expandable")]


def _no_margin(summary: Summary) -> str:
    rows = newest(summary, "no_margin")
    if not rows:
        return ""
    lines = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        mine = {row["allocator"]: row for row in rows if row["workload"] == workload}
        fits = (_fits(mine.get(name), summary.setting.rows) for name in COLUMNS)
        lines.append([plain(workload), *fits])
    margins = sorted({f"{row['margin_percent']:g}" for row in rows})
    said = [each for each in verdicts(summary, [OURS]) if each.measure == NO_MARGIN]
    return (
        f"{markdown(['no margin', *(SHORT[name] for name in COLUMNS)], lines)}\n"
        f"No margin: base + peak live + {' or '.join(margins)} % is all that is left on the card, "
        "while another process holds the rest; one run each; × its time: that of its run with "
        "room; retries: how often it emptied its cache to go on.\n"
        f"{sentences(said)}"
    )


def _fits(row: Row | None, rows: list[Row]) -> str:
    if row is None or row.get("fits") is None:
        return NOTHING
    if not row["fits"]:
        return "does not run"
    ratio, retries = time_ratio(row, rows), row.get("retries")
    slower = f", {ratio:.2f} × its time" if ratio else ""
    return f"runs{slower}" + (f", {retries} retries" if retries else "")
