"""The patterns are the ones they claim to be."""

from __future__ import annotations

import runpy
from collections.abc import Iterable

import pytest

from tests.patterns import MIB, PATTERNS, Allocate, Free, Operation, rmm_log
from tests.recorded import RECORDED

# Live MiB at the peak and at the end, as the reports' miniatures have them.
PEAK_MIB = {
    "rocm6333": 13655,
    "vllm56457": 781,
    "vllm52950": 2048,
    "pt35901": 11544,
    "pt123548": 24500,
    "pin_small": 1500,
    "big_small_big": 4098,
    "kvcat": 1040,
    "varlen": 9661,
    "growlen": 7440,
    "gnn": 7551,
    "optstep": 5570,
    "ckpt": 102300,
    "comb2": 25600,
}


def peak_bytes(operations: Iterable[Operation]) -> int:
    live: dict[str, int] = {}
    total = peak = 0
    for operation in operations:
        if isinstance(operation, Allocate):
            live[operation.name] = -(-operation.size // 512) * 512
            total += live[operation.name]
            peak = max(peak, total)
        elif isinstance(operation, Free):
            total -= live.pop(operation.name)
    return peak


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_has_the_peak_of_its_report(name: str) -> None:
    assert abs(peak_bytes(PATTERNS[name]()) / MIB - PEAK_MIB[name]) <= 2


def sequence(log: str) -> list[tuple[str, ...]]:
    """The rows of a log without the thread."""
    return [tuple(row.split(",")[1:]) for row in log.splitlines()[1:]]


@pytest.mark.traces
def test_the_patterns_equal_the_reference_row_for_row() -> None:
    reference = runpy.run_path(str(RECORDED.parent / "cases" / "patterns.py"))
    assert set(PATTERNS) == set(reference["PATTERNS"])
    for name in PATTERNS:
        theirs = "\n".join(reference["rmm_log"](reference["PATTERNS"][name]()))
        assert sequence(rmm_log(PATTERNS[name]())) == sequence(theirs), name
