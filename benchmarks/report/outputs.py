"""What is made from results: a table for the terminal, JSON, an HTML report, pictures."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ..store import Results, check_writable, unwritable
from . import picture, verdicts
from .cells import MARKS, failure, rounds
from .summary import Entry, Summary, summarise

MIB = 1 << 20
NOTHING = "–"
WIDTH = 160


def text(results: Results) -> str:
    """Return the tables of all settings for a terminal, the newest setting first."""
    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=False)
    for summary in summarise(results):
        if summary.entries:
            console.print(_table(summary))
        for table in _more(summary):
            console.print(table)
        for entry in summary.entries:
            if entry.failed:
                said = f"{entry.workload}, {entry.allocator}: {'; '.join(entry.errors)}"
                console.print(said, markup=False, highlight=False, soft_wrap=True)
    file: Any = console.file
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join(lines).rstrip() or "no row was measured"


def as_json(results: Results) -> dict[str, Any]:
    """Return the results file's object, and the figures that follow from it."""
    found = []
    for summary in summarise(results):
        entries = [dataclasses.asdict(entry) for entry in summary.entries]
        said = [dataclasses.asdict(verdict) for verdict in verdicts.verdicts(summary)]
        environment = summary.setting.environment
        found.append({"environment": environment, "entries": entries, "verdicts": said})
    return results.as_json() | {"summary": found}


def failures(results: Results) -> list[str]:
    """Return what is wrong with ours in the newest setting: other losses, runs that failed."""
    return [line for summary in summarise(results)[:1] for line in verdicts.failures(summary)]


def check(html: Path | None, pictures: Path | None) -> None:
    """Raise ResultsError before anything is measured, if what is asked for cannot be made."""
    if html is not None or pictures is not None:
        picture.need("matplotlib")
    if html is not None:
        picture.need("jinja2")
        check_writable(html)
    if pictures is not None:
        check_writable(pictures / "picture.png")


def write_html(results: Results, path: Path) -> None:
    """Write the report. Raises ResultsError."""
    from . import report

    try:
        report.write(results, path)
    except OSError as error:
        raise unwritable(path, error) from None


def write_pictures(results: Results, folder: Path) -> list[Path]:
    """Write PNGs of what there is to draw. Raises ResultsError."""
    try:
        return picture.write_all(results, folder)
    except OSError as error:
        raise unwritable(folder, error) from None


def _table(summary: Summary) -> Table:
    where = summary.setting.environment
    driver = f"driver {where['driver']}, " if where.get("driver") else ""
    table = Table(
        box=box.SIMPLE_HEAD, title_justify="left", caption=f"runs: {MARKS}", caption_justify="left",
        title=f"{where.get('gpu')}, {driver}torch {where.get('torch')}; MiB",
    )  # fmt: skip
    table.add_column("workload")
    table.add_column("allocator", no_wrap=True)
    for name in ("live", "reserved", "card", "used", "step ms", "to the fastest native", "runs",
                 "driver ms", "retries"):  # fmt: skip
        table.add_column(name, justify="right")
    table.add_column("losses")
    for entry in summary.entries:
        table.add_row(*_cells(entry))
    return table


def _cells(entry: Entry) -> list[str]:
    head = [entry.workload, entry.allocator]
    if entry.failed:
        return [*head, *[NOTHING] * 9, failure(entry)]
    peaks, times = entry.peaks, entry.times
    ratio = times.to_fastest if times else None
    return [
        *head,
        _mib(peaks.live_bytes if peaks else None),
        _mib(peaks.reserved_bytes if peaks else None),
        _mib(peaks.card_bytes if peaks else None),
        f"{peaks.utilisation:.1%}" if peaks and peaks.utilisation else NOTHING,
        f"{times.step_ms:,.2f}" if times else NOTHING,
        f"{ratio.median:.3f} ({ratio.low:.3f}–{ratio.high:.3f})" if ratio else NOTHING,
        f"{peaks.runs if peaks else 0}, {rounds(times)}",
        f"{entry.driver.ms:,.0f}" if entry.driver else NOTHING,
        NOTHING if entry.retries is None else str(entry.retries),
        entry.losses if entry.losses != "not run" else NOTHING,
    ]


def _mib(size_bytes: int | None) -> str:
    return NOTHING if size_bytes is None else f"{size_bytes / MIB:,.0f}"


def _more(summary: Summary) -> list[Table]:
    """Return the tables of capacity and no-margin, where they were measured."""
    tables = []
    if rows := verdicts.newest(summary, "capacity"):
        table = Table("workload", "allocator", "within", "largest", box=box.SIMPLE_HEAD)
        for row in rows:
            within = "the card" if row["limit_gb"] is None else f"{row['limit_gb']} GiB"
            least = "" if row.get("complete", True) else "≥ "  # the search was cut short
            largest = f"{least}{row.get('size') or 'none'} {row.get('unit') or ''}"
            table.add_row(row["workload"], row["allocator"], within, largest)
        tables.append(table)
    if rows := verdicts.newest(summary, "no_margin"):
        table = Table("workload", "allocator", "margin", "runs", box=box.SIMPLE_HEAD)
        for row in rows:
            fits = {True: "yes", False: "no", None: "unknown"}[row.get("fits")]
            table.add_row(row["workload"], row["allocator"], f"{row['margin_percent']} %", fits)
        tables.append(table)
    return tables
