"""Ratios of step times, and how sure they are.

A run is compared with another step by step, since equal seeds give equal work and the steps of one
run differ far more than two runs of one step. The median of all ratios gets a 95 % interval by
bootstrap: step numbers are drawn anew, and what all rounds say of a drawn step comes along. So the
interval says how much the figure depends on the steps that were run. How much it depends on the
process it does not say: `rounds` does, each round being other processes. A program of one step,
which is compared as a whole, has no steps to draw: the range of its rounds stands instead.

The first quarter of the steps, in which libraries start up and memory is first obtained, is left
out here; the first step has a figure of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000
AT_ONCE = 250  # resamples that are held in memory together
SEED = 1
ENDS = [2.5, 97.5]  # percentiles
REACHES = 1.0005  # a bound that reads 1.000 with three digits reaches 1


@dataclass(frozen=True)
class Interval:
    """A median between the ends of its 95 % interval, and what stands behind it."""

    low: float
    median: float
    high: float
    rounds: tuple[float, ...]  # each round's own median
    steps: int  # compared in each round; the most, where they differ

    def reaches_one(self) -> bool:
        """Say whether the interval reaches 1.00 or below."""
        return self.low <= REACHES


def warm_up(steps: int) -> int:
    """Return how many first steps are not compared."""
    return steps // 4


def measured(step_ms: Sequence[float]) -> Any:
    """Return the steps that are compared, as an array."""
    return np.asarray(step_ms[warm_up(len(step_ms)) :], dtype=float)


def step_ratios(mine: Sequence[float], others: Sequence[float]) -> Any:
    """Return time / time by step number; NaN for steps that are not compared."""
    steps = min(len(mine), len(others))
    ratios = np.full(steps, np.nan)
    first = warm_up(steps)
    ratios[first:] = np.asarray(mine[first:steps]) / np.asarray(others[first:steps])
    return ratios


def interval(rounds: Sequence[Any]) -> Interval | None:
    """Return the median of several rounds' ratios by step number, with its interval."""
    rounds = [each for each in rounds if np.isfinite(each).any()]
    if not rounds:
        return None
    table = as_table(rounds)
    one_step = table.shape[1] == 1
    low, high = np.percentile(
        table if one_step else bootstrap(table), [0, 100] if one_step else ENDS
    )
    return Interval(
        low=float(low),
        median=float(np.nanmedian(table)),
        high=float(high),
        rounds=tuple(float(np.nanmedian(each)) for each in rounds),
        steps=table.shape[1],
    )


def as_table(rounds: Sequence[Any]) -> Any:
    """Return rounds by steps, without the steps that no round compares."""
    table = np.full((len(rounds), max(len(each) for each in rounds)), np.nan)
    for at, each in enumerate(rounds):
        table[at, : len(each)] = each
    return table[:, np.isfinite(table).any(axis=0)]


def bootstrap(table: Any, draw_rounds: bool = False) -> Any:
    """Return the medians of tables whose steps (and, if asked, rounds) are drawn anew."""
    random = np.random.default_rng(SEED)
    rounds, steps = table.shape
    found = []
    for _ in range(RESAMPLES // AT_ONCE):
        picks = random.integers(0, steps, size=(AT_ONCE, steps))
        drawn = np.moveaxis(table[:, picks], 1, 0)  # resamples, rounds, steps
        if draw_rounds and rounds > 1:
            chosen = random.integers(0, rounds, size=(AT_ONCE, rounds))
            drawn = np.take_along_axis(drawn, chosen[:, :, np.newaxis], axis=1)
        found.append(_medians(drawn.reshape(AT_ONCE, -1)))
    return np.concatenate(found)


def _medians(rows: Any) -> Any:
    """Return each row's median without its NaNs, faster than numpy's; rows of NaNs give none."""
    ordered = np.sort(rows, axis=1)  # NaNs go last
    counts = np.isfinite(rows).sum(axis=1)
    at = np.arange(len(rows))
    low, high = np.maximum(counts - 1, 0) // 2, np.maximum(counts // 2, 0)
    medians = (ordered[at, low] + ordered[at, np.minimum(high, counts - 1)]) / 2
    return medians[np.isfinite(medians)]
