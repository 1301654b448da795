"""`python -m gpumem_alloc verify-isolation`."""

from __future__ import annotations

import json
import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpumem_alloc.verify import Report, verify_isolation

HELD = {True: "held", False: "NOT HELD", None: "-"}
FILE_COLUMNS = 160  # of a file or a pipe


def run(isolation: str | None, *, as_json: bool) -> int:
    """Attack everything, print what came of it, and return the exit code; raises OptionError."""
    report = verify_isolation(isolation)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        _print(Console() if sys.stdout.isatty() else Console(width=FILE_COLUMNS), report)
    return report.exit_code


def _print(console: Console, report: Report) -> None:
    table = Table(
        box=box.SIMPLE_HEAD, title=f"isolation:{report.mode} on {report.device}",
        title_justify="left",
    )  # fmt: skip
    for name in ("promise", "attack", "native", "ours", ""):
        table.add_column(name, overflow="fold")
    for check in report.checks:
        promise = f"{check.name}: {check.promise}"
        cells = promise, check.attack, check.native, check.ours, HELD[check.held]
        table.add_row(*map(Text, cells))
    console.print(table)
    for check in report.checks:
        if check.held is not True:
            print(f"{check.name}: {check.why}")
    print(report)
