"""The README's main table, one line for each workload, and what is said under it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .cells import LOST, MARKS, NOTHING, failure, markdown, mib, number, plain, ratio, rounds
from .selection import OURS
from .summary import RIVALS, Entry, Summary
from .verdicts import CARD, ERROR, LOSSES, NEAR, TIME, Verdict, verdicts, why

COLUMNS = (*RIVALS, OURS)
SHORT = {"native": "default", "expandable": "expandable", "cudaMallocAsync": "async", OURS: "ours"}
MEASURED = (CARD, TIME, LOSSES, ERROR)


def render(summary: Summary, source: str) -> str:
    """Return the main table, the verdicts, a sentence on each losing row, and the source."""
    said = verdicts(summary, [OURS])
    lost = {(each.workload, each.measure) for each in said if each.met is False}
    head = ["workload", "live", *(SHORT[name] for name in COLUMNS)]
    head += ["ours used", "ours: step time / fastest of PyTorch's", "runs"]
    lines = [_line(summary, workload, lost) for workload in shown(summary)]
    return (
        f"{markdown(head, lines)}\n"
        "MiB; columns 3 to 6: the card's memory at its peak, as NVML says, with context and "
        "libraries (base); the lowest in bold. Live: the most that was in use, as the allocator "
        "says; used: live / (card - base). Step time: median of the ratios of equal steps, with "
        "its 95 % interval over steps; the fastest is chosen anew in each round. ✗: ours loses. "
        f"Runs: of peaks, of times; {MARKS}.\n\n"
        f"{_counts(said)}\n"
        f"{sentences(each for each in said if each.measure in MEASURED)}\n"
        f"{source}\n"
    )


def shown(summary: Summary) -> list[str]:
    """Return the workloads of the README: those that ours or two of PyTorch's ran."""
    wanted = [each for each in summary.entries if each.allocator in COLUMNS]
    names = [each.workload for each in wanted]
    ours = {each.workload for each in wanted if each.allocator == OURS}
    return [name for name in dict.fromkeys(names) if name in ours or names.count(name) > 1]


def _line(summary: Summary, workload: str, lost: set[tuple[str, str]]) -> Sequence[str]:
    entries = [summary.entry(workload, name) for name in COLUMNS]
    cards = [_card(entry) for entry in entries]
    best = min((card for card in cards if card is not None), default=None)
    ours = entries[-1]
    cells = [_card_cell(*each, best) for each in zip(entries, cards, strict=True)]
    if lost & {(workload, CARD), (workload, ERROR)}:
        cells[-1] += LOST
    live = max((_live(entry) for entry in entries), default=0)
    peaks = ours.peaks if ours else None
    times = ours.times if ours else None
    step = ratio(times.to_fastest if times else None)
    step += LOST if (workload, TIME) in lost else ""
    step += f"{LOST} losses" if (workload, LOSSES) in lost else ""
    used = number(peaks.utilisation if peaks else None, "{:.1%}").replace("%", " %")
    runs = f"{peaks.runs if peaks else 0}, {rounds(times)}"
    return [plain(workload), mib(live or None), *cells, used, step, runs]


def _card(entry: Entry | None) -> int | None:
    return entry.peaks.card_bytes if entry and entry.peaks else None


def _live(entry: Entry | None) -> int:
    return (entry.peaks.live_bytes or 0) if entry and entry.peaks else 0


def _card_cell(entry: Entry | None, card_bytes: int | None, best: int | None) -> str:
    if entry is None:
        return NOTHING
    if card_bytes is None:
        return failure(entry) if entry.failed else NOTHING
    return f"**{mib(card_bytes)}**" if card_bytes == best else mib(card_bytes)


def _counts(said: list[Verdict]) -> str:
    """Say how often ours meets what it is held to."""
    card, time = _count(said, CARD), _count(said, TIME)
    percent = round(100 * (NEAR - 1))
    return (
        f"Ours holds the least card memory, or within {percent} % of it, in {card} workloads; the "
        f"interval of its step times reaches 1.00 in {time} that were timed, which are not shown "
        "to be slower; of those whose losses can be compared bit by bit with the default's, they "
        "are equal in "
        f"{_count(said, LOSSES)}."
    )


def _count(said: list[Verdict], measure: str) -> str:
    known = [each.met for each in said if each.measure == measure and each.met is not None]
    return f"{sum(known)} of {len(known)}"


def sentences(said: Iterable[Verdict]) -> str:
    """Return one line for each losing row, with what we know of its cause."""
    known = why()
    lines = [
        f"- {plain(each.workload)}, {plain(each.text)}: "
        f"{plain(known.get(each.key, 'why is not known yet.'))}\n"
        for each in said
        if each.met is False
    ]
    return "".join(["\n", *lines]) if lines else ""
