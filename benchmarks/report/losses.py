"""Whether an allocator changed what was computed.

Losses are compared bit by bit with native's of the same session and number of steps: those of runs
with deterministic kernels where there are some. Some kernels add in no fixed order even then, so
that native differs from itself; nothing is said of ours in that case, nor where native ran once
and ours differs. Of usual kernels in a workload that says they are unordered a difference proves
nothing; where all natives of the session agree it is told all the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..store import Row
from ..workloads import WORKLOADS

REFERENCE = "native"
EQUAL, NOT_RUN, NOT_COMPARABLE = "equal", "not run", "not comparable"
UNORDERED = "unordered, natives agree, ours do not"


def compare(rows: Iterable[Row], allocator: str) -> str:
    """Return one of the words above, or "differ from step N", of one workload.

    The reference is "equal" where it repeats itself and "not run" where it ran once.
    """
    good = [row for row in rows if "error" not in row and any(row.get("losses") or [])]
    fixed = [row for row in good if row.get("deterministic")]
    found = []
    for mine in fixed or good:
        if mine["allocator"] != allocator:
            continue
        natives = [
            row["losses"]
            for row in fixed or good
            if row["allocator"] == REFERENCE and row is not mine and _same_run(row, mine)
        ]
        if natives:
            found.append(_against(mine["losses"], natives, allocator))
    for worst in (each for each in found if each.startswith("differ")):
        return worst if fixed or not _is_unordered(good) else UNORDERED
    return next((each for each in (NOT_COMPARABLE, EQUAL) if each in found), NOT_RUN)


def _is_unordered(rows: list[Row]) -> bool:
    known = WORKLOADS.get(str(rows[0].get("workload")))
    return known is not None and known.unordered != ""


def _same_run(row: Row, mine: Row) -> bool:
    return row["session"] == mine["session"] and len(row["losses"]) == len(mine["losses"])


def _against(mine: list[str], natives: list[list[str]], allocator: str) -> str:
    if mine in natives:
        return EQUAL
    if allocator == REFERENCE or any(each != natives[0] for each in natives) or len(natives) < 2:
        return NOT_COMPARABLE
    pairs = enumerate(zip(mine, natives[0], strict=True))
    return f"differ from step {next(at for at, (a, b) in pairs if a != b)}"
