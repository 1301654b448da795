"""The page of the documentation that says what holds and what differs."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

from tests.behaviour.table import behaviours

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "behaviours.md"

_HEAD = """# What a program sees of PyTorch's allocator

Written by `python -m tests.behaviour --write` from the tables in `tests/behaviour/`;
`tests/test_behaviour.py` checks that it is current, and that every row holds.

Each behaviour is a few lines of Python that use only PyTorch's own names. The same lines are run
with PyTorch's allocator and with ours, in place of it through the bridge, on a stand-in card and,
with `pytest -m gpu`, on a real one, those with two cards on two. They are run a third time with
`enable()` after the card was used: on a real card all that need no process of their own, on the
stand-in those of pools, graphs, checkpoints, streams and raw memory. A row below is one where ours
is meant to differ: there the lines must fail with ours, and other lines must hold instead.
"""


def count() -> str:
    """How many behaviours there are, in a sentence."""
    rows = behaviours().values()
    differing = sum(row.difference is not None for row in rows)
    return (
        f"{len(rows)} behaviours: {len(rows) - differing} pass on both,"
        f" {differing} documented differences"
    )


def page() -> str:
    """The whole page."""
    rows = behaviours().values()
    groups = Counter(row.group for row in rows)
    on_gpu = Counter(row.group for row in rows if row.gpu)
    lines = [_HEAD, f"{count()}.", "", "| group | about | behaviours | of them on a GPU only |"]
    lines.append("|---|---|---|---|")
    for group, number in groups.items():
        module = importlib.import_module(f"tests.behaviour.{group}")
        about = (module.__doc__ or "").splitlines()[0].rstrip(".")
        lines.append(f"| {group} | {about} | {number} | {on_gpu[group]} |")
    lines += ["", "## Documented differences", ""]
    lines += ["| behaviour of PyTorch's allocator | ours differs, because |", "|---|---|"]
    for row in rows:
        if row.difference is not None:
            sentence = row.check.__name__.replace("_", " ")
            lines.append(f"| {row.group}: {sentence} | {row.difference.reason} |")
    return "\n".join(lines) + "\n"
