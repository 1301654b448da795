"""Tables of what several ranks did: a line for each rank, the odd one named.

The rows are of benchmarks/results/ranks/, made by `python -m gpumem_alloc bench ranks`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from .cells import NOTHING, label, markdown, mib, number, plain
from .losses import EQUAL, NOT_COMPARABLE
from .summary import NATIVE

Row = dict[str, Any]
HEAD = (
    "program", "allocator", "rank", "step ms", "step / default", "card MiB", "card / default",
    "live MiB", "losses", "places",
)  # fmt: skip
ONE_HEAD = (
    "program", "allocator", "ranks", "step ms", "on one device", "live MiB of a rank",
    "on one device", "losses differ by",
)  # fmt: skip
# The card is polled, and page tables and libraries come in pieces: less than this is no difference.
CARD_SHARE, CARD_BYTES = 0.02, 32 << 20
# What a rank may differ in, the weightiest first.
ODD = (
    ("asked", "other requests"), ("places", "other places"),
    ("reserved_peak_bytes", "another peak"),
)  # fmt: skip
SAME, MOVED, DIFFER = "same addresses", "same in their segments", "differ"
LEGEND = (
    "*places*: where the last step's requests lie on the ranks, at the same addresses or at the "
    "same distance into segments that lie elsewhere. A rank is odd if it asks for other memory "
    "than the others (other requests), gets the same memory elsewhere in its segments (other "
    "places), or peaks otherwise."
)


def render(rows: Sequence[Row]) -> str:
    """Return the tables, of all rounds; empty where nothing was measured."""
    if not rows:
        return ""
    names = dict.fromkeys((row["program"], row["allocator"]) for row in rows)
    lines = [
        line_of(rows, program, allocator, rank)
        for program, allocator in names
        for rank in sorted({row["rank"] for row in chosen(rows, program, allocator)})
    ]
    ones = [line for program, allocator in names if (line := one(rows, program, allocator))]
    parts = [markdown(HEAD, lines), *([markdown(ONE_HEAD, ones)] if ones else [])]
    return "\n".join([*parts, LEGEND + "\n"])


def chosen(rows: Sequence[Row], program: str, allocator: str) -> list[Row]:
    """Return the rows of a program under an allocator."""
    return [row for row in rows if (row["program"], row["allocator"]) == (program, allocator)]


def step_ms(row: Row) -> float | None:
    """Return the median of a row's steps, without the first quarter."""
    times = row.get("step_ms") or []
    kept = times[len(times) // 4 :]
    return statistics.median(kept) if kept else None


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of what there is."""
    found = [value for value in values if value is not None]
    return statistics.median(found) if found else None


def card_bytes(row: Row) -> int | None:
    """Return the card's peak beyond what was used before."""
    peak: int | None = (row.get("card") or {}).get("peak_bytes")
    return peak or None  # a card that could not be asked says 0


def beside(rows: Sequence[Row], row: Row) -> Row | None:
    """Return the native row of the same program, rank and round."""
    for each in chosen(rows, row["program"], NATIVE):
        if (each["rank"], each.get("round")) == (row["rank"], row.get("round")):
            return each if "error" not in each else None
    return None


def ratios(rows: Sequence[Row], mine: Sequence[Row], figure: Any) -> float | None:
    """Return the median over the rounds of a figure over native's."""
    found = []
    for row in mine:
        native = beside(rows, row)
        ours, theirs = figure(row), figure(native) if native else None
        found.append(ours / theirs if ours and theirs else None)
    return middle(found)


def losses(rows: Sequence[Row], mine: Sequence[Row]) -> str:
    """Say whether every loss is native's, to the last bit, where native's are always the same."""
    pairs = [(row["losses"], native["losses"]) for row in mine if (native := beside(rows, row))]
    pairs = [pair for pair in pairs if any(pair[0])]
    if not pairs or mine[0]["allocator"] == NATIVE:
        return NOTHING
    if all(ours == theirs for ours, theirs in pairs):
        return EQUAL
    natives = [theirs for _, theirs in pairs]
    has_proof = len(natives) > 1 and all(theirs == natives[0] for theirs in natives)
    return "**differ**" if has_proof else NOT_COMPARABLE


def places(rows: Sequence[Row]) -> str:
    """Say how alike the addresses of one round's ranks are."""
    for name, word in (("addresses", SAME), ("places", MOVED)):
        found = {row.get(name) for row in rows}
        if None in found:
            return NOTHING
        if len(found) == 1:
            return word
    return DIFFER


def odd(rows: Sequence[Row]) -> dict[int, str]:
    """Return the ranks that differ from the others in one program and round, and in what."""
    found = {row["rank"]: "failed" for row in rows if "error" in row}
    alike = [row for row in rows if "error" not in row and row.get("is_alike", True)]
    for name, why in ODD:
        counts = Counter(row.get(name) for row in alike)
        usual = counts.most_common(1)[0] if counts else (None, 0)
        has_usual = usual[1] * 2 > len(alike)
        for row in alike if len(counts) > 1 else []:
            if not has_usual or row.get(name) != usual[0]:
                found.setdefault(row["rank"], why)
    peaks = {row["rank"]: peak for row in alike if (peak := card_bytes(row))}
    usual_peak = middle(list(peaks.values()))
    for rank, peak in peaks.items():
        if usual_peak and abs(peak - usual_peak) > CARD_SHARE * usual_peak + CARD_BYTES:
            found.setdefault(rank, "another peak of the card")
    return found


def odd_ones(rows: Sequence[Row]) -> list[str]:
    """Return a line for each rank that is odd anywhere."""
    groups = dict.fromkeys((row["program"], row["allocator"], row.get("round")) for row in rows)
    lines = []
    for program, allocator, place in groups:
        mine = [row for row in chosen(rows, program, allocator) if row.get("round") == place]
        by_reason: dict[str, list[int]] = {}
        for rank, why in odd(mine).items():
            by_reason.setdefault(why, []).append(rank)
        lines += [
            f"{program}, {allocator}, round {place}: rank {', '.join(map(str, ranks))}: {why}"
            for why, ranks in by_reason.items()
        ]
    return lines


def line_of(rows: Sequence[Row], program: str, allocator: str, rank: int) -> list[str]:
    """Return a rank's line."""
    all_ranks = chosen(rows, program, allocator)
    mine = [row for row in all_ranks if row["rank"] == rank]
    head = [plain(program), label(allocator), str(rank)]
    good = [row for row in mine if "error" not in row]
    if not good:
        return [*head, "failed", *[NOTHING] * 6]
    last = [row for row in all_ranks if row.get("round") == good[-1].get("round")]
    why = odd(last).get(rank)
    return [
        *head,
        number(middle([step_ms(row) for row in good]), "{:,.1f}"),
        number(ratios(rows, good, step_ms), "{:.3f}"),
        mib(middle([card_bytes(row) for row in good])),
        number(ratios(rows, good, card_bytes), "{:.2f}"),
        mib(middle([row.get("live_peak_bytes") for row in good])),
        losses(rows, good),
        f"**odd**: {why}" if why else places(last) if good[-1].get("is_alike") else NOTHING,
    ]


def one(rows: Sequence[Row], program: str, allocator: str) -> list[str] | None:
    """Return the line of a model that was cut, beside the whole one on one device."""
    good = [row for row in chosen(rows, program, allocator) if "error" not in row]
    ends = [row for row in good if "one_device" in row]
    if not ends:
        return None
    whole = [row["one_device"] for row in ends]
    live = [row.get("live_peak_bytes") for row in good]
    return [
        plain(program),
        label(allocator),
        str(ends[0]["ranks"]),
        number(middle([step_ms(row) for row in ends]), "{:,.1f}"),
        number(middle([step_ms(each) for each in whole]), "{:,.1f}"),
        mib(max((each for each in live if each is not None), default=None)),
        mib(middle([each.get("live_peak_bytes") for each in whole])),
        f"{max(difference(row) for row in ends):.1e}",
    ]


def difference(row: Row) -> float:
    """Return by how much the losses of a cut model differ from one device's, in parts."""
    pairs = zip(row["losses"], row["one_device"]["losses"], strict=True)
    values = [(float.fromhex(ours), float.fromhex(theirs)) for ours, theirs in pairs]
    return max(abs(ours - theirs) / abs(theirs) for ours, theirs in values)
