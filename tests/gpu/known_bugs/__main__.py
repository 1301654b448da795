"""Known bugs under every level.

    python -m tests.gpu.known_bugs [--levels strict,tensor] [--cases NAME,NAME] [--json FILE]
    python -m tests.gpu.known_bugs --write       writes docs/known-bugs.md, and runs nothing

Prints what was found of each mistake, and false alarms of the twins. Exit code 1 if anything
differs from the table: not found where it says always, found where it says never, an alarm on a
twin, or a program that could not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path

from tests.gpu.known_bugs.document import DOCUMENT, page
from tests.gpu.known_bugs.runner import AT_ONCE, Observation, Runner, difference
from tests.gpu.known_bugs.table import LEVELS, Case, Level, cases


def chosen(text: str, known: Sequence[str]) -> list[str]:
    """Split a list of names, all of them where there is none; an unknown one ends it."""
    names = text.split(",") if text else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def cell(case: Case, level: Level, seen: Observation, kind: str) -> str:
    """Make one cell of the printed table: what came out, `!` if it should not have."""
    word = seen.outcome if seen.found or seen.outcome == "error" else f"- ({seen.outcome})"
    return f"{word}{' !' if difference(case, seen, kind) else ''} [{case.found[level]}]"


def table(levels: Sequence[Level], seen: Sequence[Observation], kind: str) -> str:
    """Make the table of the wrong twins: case x level, with what is expected in brackets."""
    by_place = {(each.case, each.level): each for each in seen if each.wrong}
    names = list(dict.fromkeys(each.case for each in seen))
    rows = [["case", *levels]]
    for name in names:
        case = cases()[name]
        rows.append([name, *(cell(case, level, by_place[name, level], kind) for level in levels)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def run(
    kind: str, at_once: int, names: Sequence[str], levels: Sequence[Level]
) -> list[Observation]:
    """Run every case that was asked for, wrong and right."""
    with Runner(kind, at_once) as runner:
        begun: list[Future[Observation]] = [
            runner.submit(cases()[name], level, wrong)
            for name in names
            for level in levels
            for wrong in (True, False)
        ]
        return [each.result() for each in begun]


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.known_bugs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--levels", default="")
    parser.add_argument("--cases", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--at-once", type=int, default=AT_ONCE)
    parser.add_argument("--machine", choices=("gpu", "rig"), default="gpu")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if asked.write:
        DOCUMENT.write_text(page())
        return 0
    wanted = chosen(asked.levels, LEVELS)
    levels = [level for level in LEVELS if level in wanted]
    seen = run(asked.machine, asked.at_once, chosen(asked.cases, list(cases())), levels)
    told = [difference(cases()[each.case], each, asked.machine) for each in seen]
    differences = [text for text in told if text]
    print(table(levels, seen, asked.machine))
    twins = [each for each in seen if not each.wrong]
    alarms = sum(each.found for each in twins)
    print(f"{alarms} false alarms on {len(twins)} twins; {len(differences)} differences")
    print("\n".join(differences))
    if asked.json:
        result = {"format": 1, "levels": levels, "observations": [asdict(each) for each in seen]}
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
