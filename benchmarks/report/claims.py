"""What the source documents claim, and what the card says.

A claim is shown once its workloads were measured under PyTorch's default. Times of two different
workloads are whole runs without the first step, in one session; they did not run in lockstep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..workloads import WORKLOADS
from .cells import NOTHING, markdown, mib
from .selection import OURS
from .summary import Entry, Summary

NATIVE, SPLIT64 = "native", "native-split64"
SPLITS = ("native-split32", SPLIT64, "native-split128", "native-split512")
Find = Callable[[str, str], Entry]  # workload and allocator; raises Missing


class MissingError(Exception):
    """A figure that was not measured."""


@dataclass(frozen=True)
class Claim:
    """What a document says, and the sentences that its measurement gives."""

    says: str
    pytorch: Callable[[Find], str]
    ours: Callable[[Find], str]


def render(summary: Summary, source: str) -> str:
    """Return the table of claims; empty where none was measured."""

    def find(workload: str, allocator: str) -> Entry:
        entry = summary.entry(workload, allocator)
        if entry is None or entry.failed:
            raise MissingError
        return entry

    lines = []
    for claim in CLAIMS:
        pytorch, ours = (_said(say, find) for say in (claim.pytorch, claim.ours))
        if pytorch != NOTHING:
            lines.append([claim.says, pytorch, ours])
    if not lines:
        return ""
    table = markdown(["the documents say", "PyTorch on this card", "ours"], lines)
    return (
        f"{table}\nUsed: live / (card - base). Times: whole runs without the first step, "
        "those of two workloads of one session and different minutes, where driver calls may have "
        "been counted, of whichever version ran both. The documents name no programs; ours stand "
        "in for them.\n\n"
        f"{source}\n"
    )


def _said(say: Callable[[Find], str], find: Find) -> str:
    try:
        return say(find)
    except MissingError:
        return NOTHING


def _used(entry: Entry) -> str:
    if entry.peaks is None or entry.peaks.utilisation is None:
        raise MissingError
    return f"{100 * entry.peaks.utilisation:.1f} %"


def _run_s(first: Entry, second: Entry) -> tuple[float, float]:
    """Return what two whole runs took, in the newest session that has both.

    Where that is one of the pass for peaks, driver calls were counted in both.
    """
    firsts, seconds = first.run_s_by_session, second.run_s_by_session
    for session in reversed(firsts):
        if session in seconds:
            return firsts[session], seconds[session]
    raise MissingError


def _card_bytes(entry: Entry) -> int:
    if entry.peaks is None or entry.peaks.card_bytes is None:
        raise MissingError
    return entry.peaks.card_bytes


def _live_bytes(entry: Entry) -> int:
    if entry.peaks is None or entry.peaks.live_bytes is None:
        raise MissingError
    return entry.peaks.live_bytes


def _speed(entry: Entry, reference: Entry) -> str:
    try:
        run_s, reference_s = _run_s(entry, reference)
    except MissingError:
        return "a speed not measured in one session"
    return f"{100 * reference_s / run_s:.0f} % of the speed"


def _emptied(find: Find) -> str:
    plain, emptied = find("text_varlen", NATIVE), find("text_varlen_emptied", SPLIT64)
    alone = find("text_varlen_emptied", NATIVE)
    return (
        f"{_used(plain)} used, {_used(emptied)} at {_speed(emptied, plain)} with both; "
        f"{_used(alone)} at {_speed(alone, plain)} with the emptying alone"
    )


def _not_emptied(find: Find) -> str:
    ours = find("text_varlen", OURS)
    return f"{_used(ours)} used at {_speed(ours, find('text_varlen', NATIVE))}, nothing emptied"


def _held(allocator: str) -> Callable[[Find], str]:
    def say(find: Find) -> str:
        entry = find("train", allocator)
        return f"{mib(_live_bytes(entry))} MiB in use, {mib(_card_bytes(entry))} on the card"

    return say


def _splits(find: Find) -> str:
    shown = []
    for name in SPLITS:
        try:
            shown.append(
                f"{mib(_card_bytes(find('train', name)))} with {name.removeprefix('native-split')}"
            )
        except MissingError:
            continue
    if not shown:
        raise MissingError
    plain = mib(_card_bytes(find("train", NATIVE)))
    return f"MiB on the card: {plain} without, {', '.join(shown)}"


def _batches(allocator: str) -> Callable[[Find], str]:
    def say(find: Find) -> str:
        small, large = find("bert_batch16", allocator), find("bert_batch32", allocator)
        small_s, large_s = _run_s(small, large)
        step_s = (
            small_s / (WORKLOADS["bert_batch16"].steps - 1),
            large_s / (WORKLOADS["bert_batch32"].steps - 1),
        )
        percent = 100 * (step_s[1] / (2 * step_s[0]) - 1)  # half as many steps, each of twice
        steps = " and ".join(f"{1e3 * each:.0f}" for each in step_s)
        cards = f"{mib(_card_bytes(small))} and {mib(_card_bytes(large))} MiB"
        return f"{percent:+.0f} % time ({steps} ms a step); {cards}, no sharing needed"

    return say


def _segmentation(find: Find) -> str:
    native = find("segmentation_3d", NATIVE)
    return f"{mib(_card_bytes(native))} MiB on the card for {mib(_live_bytes(native))} in use"


def _segmentation_ours(find: Find) -> str:
    native, ours = find("segmentation_3d", NATIVE), find("segmentation_3d", OURS)
    less = 100 * (_card_bytes(ours) / _card_bytes(native) - 1)
    ratio = ours.times.to_native if ours.times else None
    if ratio is None:
        raise MissingError
    return f"{less:+.0f} % memory, {100 * (1 / ratio.median - 1):+.1f} % throughput"


CLAIMS = (
    Claim(
        "variable-length text: 45 % of the memory held is used, 78 % at 95 % of the speed with "
        "max_split_size_mb:64 and the cache emptied every 100 batches",
        _emptied,
        _not_emptied,
    ),
    Claim("3 GB are allocated where the card shows 10 GB", _held(NATIVE), _held(OURS)),
    Claim("a smaller max_split_size_mb lowers fragmentation", _splits, _held(OURS)),
    Claim(
        "BERT: sharing memory lets the batch rise from 16 to 32, which takes 30 % off the time",
        _batches(NATIVE),
        _batches(OURS),
    ),
    Claim(
        "3D segmentation: sharing memory takes 40 % off it and adds 25 % of throughput",
        _segmentation,
        _segmentation_ours,
    ),
)
