"""What each level of isolation does with each attack of verify-isolation, beside PyTorch.

python -m benchmarks.host.attacks [--levels stream,...] [--out FILE]

The results file has one row for each level and attack, and the machine. The README's table comes
from the newest one that was made on a card.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..report.cells import NOTHING, markdown, plain
from ..workers.environment import environment
from . import host_process

HERE = Path(__file__).resolve().parent
LEVELS = ("stream", "packed", "tensor", "strict")
HELD, GOT_THROUGH = "held", "got through"

Row = dict[str, Any]


def measure(levels: Sequence[str]) -> list[Row]:
    """Attack every promise of every level; a row for each."""
    from gpumem_alloc import verify_isolation

    rows = []
    for level in levels:
        report = verify_isolation(level)
        print(report)
        for check in report.to_dict()["checks"]:
            rows.append({"level": level, "device": report.device, **check})
    return rows


def render(rows: Sequence[Row]) -> str:
    """Return a table of attacks and levels, with what PyTorch's allocator did."""
    levels = [level for level in LEVELS if any(row["level"] == level for row in rows)]
    by_name: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_name.setdefault(row["name"], {})[row["level"]] = row
    lines = [
        [
            plain(name),
            plain(next(iter(of_level.values()))["native"]) or NOTHING,
            *(cell(of_level.get(level)) for level in levels),
        ]
        for name, of_level in by_name.items()
    ]
    head = ["attack", "PyTorch", *(f"`{level}`" for level in levels)]
    return markdown(head, lines)


def cell(row: Row | None) -> str:
    """Say whether a promise was held; what happened where nothing was promised."""
    if row is None or not row["ours"]:
        return NOTHING
    if row["held"] is None:
        return NOTHING if row["ours"].startswith("not run") else f"({plain(row['ours'])})"
    return HELD if row["held"] else f"**{GOT_THROUGH}**: {plain(row['ours'])}"


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", type=lambda text: text.split(","), default=list(LEVELS))
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "attacks.json")
    arguments = parser.parse_args()
    rows = measure(arguments.levels)
    host_process.write(rows, arguments.out, environment())
    print(render(rows))
    print(f"results: {arguments.out}")
    sys.exit(any(row["held"] is False for row in rows))


if __name__ == "__main__":
    main()
