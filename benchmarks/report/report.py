"""One HTML file of results: tables, verdicts and charts, without scripts, fonts or links outside.

Whatever came from a results file is escaped by the template; charts are made as elements here, and
matplotlib escapes their text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..store import Results, Row
from ..workloads import WORKLOADS
from . import charts
from .cells import LOST, MARKS, NOTHING, label
from .columns import (
    MEMORY_HEAD,
    SESSIONS_HEAD,
    TIMES_HEAD,
    behind,
    environment_lines,
    lost_keys,
    memory_cells,
    session_lines,
    times_cells,
)
from .picture import need, svg
from .selection import OURS
from .summary import Summary, summarise
from .verdicts import MEASURES, Verdict, newest, verdicts, why

TEMPLATE = Path(__file__).resolve().parent / "report.html"
LONGEST_ERROR = 1000  # characters


def write(results: Results, path: Path) -> None:
    """Write the report. Raises NotInstalledError where jinja2 or matplotlib is missing."""
    text = render(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def render(results: Results) -> str:
    """Return the page. Raises NotInstalledError."""
    jinja2 = need("jinja2")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    settings = [_setting(summary, number) for number, summary in enumerate(summarise(results))]
    return str(
        template.render(
            title=settings[0]["title"] if settings else "nothing measured",
            settings=settings,
            marks=MARKS,
            lost=LOST.strip(),
            memory_head=MEMORY_HEAD,
            times_head=TIMES_HEAD,
            sessions_head=SESSIONS_HEAD,
        )
    )


def _setting(summary: Summary, number: int) -> dict[str, Any]:
    environment = summary.setting.environment
    ours = [verdict.allocator for verdict in verdicts(summary)]
    main = OURS if OURS in ours else next(iter(ours), "")
    return {
        "title": f"{environment.get('gpu')}, torch {environment.get('torch')}",
        "environment": environment_lines(environment),
        "measures": MEASURES,
        "verdicts": _verdicts(summary, lambda name: name == main),
        "other_verdicts": _verdicts(summary, lambda name: name != main),
        "step_chart": _chart(charts.step_intervals(summary)),
        "capacity_chart": _chart(charts.capacity_bars(summary)),
        "driver_chart": _chart(charts.driver_bars(summary)),
        "no_margin": [_no_margin(row) for row in newest(summary, "no_margin")],
        "workloads": [
            _workload(summary, name, f"workload-{number}-{at}")
            for at, name in enumerate(summary.workloads())
        ],
        "failed": [_failed(row) for row in summary.setting.rows if "error" in row],
        "sessions": session_lines(summary),
    }


def _chart(made: Any) -> Any:
    """Return a chart as an element that the template leaves as it is."""
    return need("markupsafe").Markup(svg(made)) if made is not None else None


def _text(value: Any) -> str:
    return NOTHING if value is None else str(value)


def _verdicts(summary: Summary, wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return a line for each workload under each wanted allocator of ours, a cell per measure."""
    sentences = why()
    found: dict[tuple[str, str], dict[str, list[Verdict]]] = {}
    for verdict in verdicts(summary):
        if wanted(verdict.allocator):
            line = found.setdefault((verdict.workload, verdict.allocator), {})
            line.setdefault(verdict.measure, []).append(verdict)
    return [
        {
            "workload": workload,
            "allocator": label(allocator),
            "cells": [_said(line.get(measure, []), sentences) for measure in MEASURES],
        }
        for (workload, allocator), line in found.items()
    ]


def _said(said: list[Verdict], sentences: dict[tuple[str, str, str], str]) -> dict[str, str]:
    """Return a cell: what was found, as a class and as text, and why it was lost."""
    met = [verdict.met for verdict in said if verdict.met is not None]
    is_lost = False in met
    text = "; ".join((LOST.strip() + " " if each.met is False else "") + each.text for each in said)
    return {
        "state": "lost" if is_lost else "met" if met else "",
        "text": text or NOTHING,
        "why": sentences.get(said[0].key, "") if is_lost else "",
    }


def _workload(summary: Summary, name: str, anchor: str) -> dict[str, Any]:
    entries = [entry for entry in summary.entries if entry.workload == name]
    lost = lost_keys(summary)
    known = WORKLOADS.get(name.partition(" at ")[0])
    drawn, every = charts.timelines(summary, name), charts.timelines(summary, name, most=None)
    return {
        "name": name,
        "anchor": anchor,
        "stresses": known.stresses if known else "",
        "timeline": _chart(charts.over_time(summary, name)),
        "left_out": ", ".join(each for each in every if each not in drawn),
        "bars": _chart(charts.card_bars(summary, name)),
        "behind": behind(entries),
        "memory": [memory_cells(entry, lost) for entry in entries],
        "times": [times_cells(entry, lost) for entry in entries],
    }


def _no_margin(row: Row) -> list[str]:
    fits = "unknown" if row.get("fits") is None else "yes" if row["fits"] else "no"
    margin, error = f"{row.get('margin_percent')} %", _text(row.get("error", ""))[:LONGEST_ERROR]
    name = label(row["allocator"])
    return [row["workload"], name, margin, fits, _text(row.get("retries")), error]


def _failed(row: Row) -> list[str]:
    error = _text(row["error"])[:LONGEST_ERROR]
    return [row["workload"], label(row["allocator"]), row["kind"].replace("_", " "), error]
