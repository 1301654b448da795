"""The page of the documentation that says what each level finds of each mistake."""

from __future__ import annotations

from pathlib import Path

from tests.gpu.known_bugs.table import LEVELS, cases

DOCUMENT = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "known-bugs.md"

_HEAD = """# Known bugs, and what finds them

Written by `python -m tests.gpu.known_bugs --write` from the cases in `tests/gpu/known_bugs/`;
`tests/test_known_bugs.py` checks that it is current and, with `pytest -m gpu`, that it holds.

Each case is a small program with one real mistake, and its twin, which does the same work without
it. `native` is PyTorch's own allocator; the other columns are levels of `isolation`. *Always* and
*never* are what must come out each time, *sometimes* is what depends on where memory lies or on
who is first. A wrong result alone counts as not found: a program does not know the right one. No
level may raise an alarm on a twin.

How `strict` finds it: a **fault** is an error from the hardware in the kernel that made the
mistake; a **violation** is a changed pattern or a wrong free, told by the allocator; **poison** is
NaN in the result, from memory that nobody wrote.
"""


def page() -> str:
    """The whole page."""
    rows = cases().values()
    lines = [_HEAD, f"{len(rows)} cases.", ""]
    lines.append(f"| case | mistake | {' | '.join(LEVELS)} | found as |")
    lines.append(f"|---|---|{'---|' * len(LEVELS)}---|")
    for case in rows:
        name = f"{case.group}: {case.name.replace('_', ' ')}"
        options = ", ".join(f"`{key}:{value}`" for key, value in case.options.items())
        signal = f"{case.signal} (with {options})" if options else case.signal
        found = " | ".join(case.found[level] for level in LEVELS)
        lines.append(f"| {name} | {case.mistake} | {found} | {signal} |")
    return "\n".join(lines) + "\n"
