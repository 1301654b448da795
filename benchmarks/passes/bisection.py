"""Which size to try next, and what the tries so far have shown. No clock, no process: arithmetic.

The claim is the largest size that fit below the smallest one that did not. A size that fits above
one that failed proves nothing, since a smaller one would already have ended a real job.

    tries = []
    while (size := next_size(tries, smallest=8)) is not None:
        tries.append(Try(size, fits=run(size)))
    low, high = bracket(tries)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RESOLUTION = 0.02  # of the size: the search is over when the bracket is this narrow, or 1 wide
STEP = 0.04  # first step away from an expected answer; each further one is twice as wide
MOST_TRIES = 12
MOST_GROWTH = 16  # a try is at most this many times as large as one that fit
APART = 0.7  # of a larger size: what lies nearer tells nothing of how live bytes grow
BLIND_GROWTH = 4  # where nothing says how large the answer may be

Point = tuple[int, int]  # size, peak of live bytes


@dataclass(frozen=True)
class Try:
    """One run at one size; `error` is None where it fit."""

    size: int
    fits: bool
    seconds: float = 0.0
    error: str | None = None
    live_peak_bytes: int | None = None
    left_bytes: int | None = None


def bracket(tries: Iterable[Try]) -> tuple[int | None, int | None]:
    """Return the claim, and the smallest size that failed; None where there is none yet."""
    tries = list(tries)
    high = min((each.size for each in tries if not each.fits), default=None)
    fit = [each.size for each in tries if each.fits and (high is None or each.size < high)]
    return max(fit, default=None), high


def is_narrow(low: int, high: int) -> bool:
    """Whether nothing more is to be found between a claim and a failure."""
    return high - low <= max(1, math.floor(RESOLUTION * low))


def is_complete(tries: Iterable[Try], smallest: int) -> bool:
    """Whether the claim is as good as it gets: narrow, or not even the smallest size fits."""
    low, high = bracket(tries)
    if high is None:
        return False
    return is_narrow(low, high) if low is not None else high <= smallest


def next_size(
    tries: Sequence[Try],
    *,
    smallest: int,
    hints: Sequence[int] = (),
    expected: int | None = None,
    most_tries: int = MOST_TRIES,
) -> int | None:
    """Return the size to try next; None when the claim is good, or the tries are used up.

    hints     sizes worth trying as such: where other allocators' claims and failures lie
    expected  where the answer may lie by the live bytes of smaller sizes
    """
    low, high = bracket(tries)
    if len(tries) >= most_tries or is_complete(tries, smallest):
        return None
    between = [
        hint for hint in hints if (low or smallest - 1) < hint and (high is None or hint < high)
    ]
    if between:
        return min(between)
    if low is None:
        return smallest if high is None else max(smallest, high - _width_down(tries, high))
    if high is None:
        if expected is None and not hints:
            return low * BLIND_GROWTH
        return min(low * MOST_GROWTH, max(low + _width_up(tries, low), expected or 0))
    return _inside(tries, low, high, expected)


def _inside(tries: Sequence[Try], low: int, high: int, expected: int | None) -> int:
    """Step away from the side where the answer is expected, never past the middle."""
    wide = high > 2 * low
    middle = math.isqrt(low * high) if wide else (low + high) // 2
    middle = min(max(middle, low + 1), high - 1)
    if expected is None:
        return middle
    if expected < low + _first_step(low):
        return min(middle, low + _width_up(tries, low))
    if expected > high - _first_step(high):
        return max(middle, high - _width_down(tries, high))
    return expected


def _first_step(size: int) -> int:
    return max(1, math.floor(STEP * size))


def _width_up(tries: Sequence[Try], low: int) -> int:
    """Twice the last step up, a third of the size at most; a jump from far away was no step."""
    before = max((each.size for each in tries if each.fits and each.size < low), default=0)
    last = low - before
    return max(_first_step(low), min(2 * last, low // 3) if last <= low // 2 else 0)


def _width_down(tries: Sequence[Try], high: int) -> int:
    """Twice the last step down, half of the size at most; a jump from far away was no step."""
    after = min((each.size for each in tries if not each.fits and each.size > high), default=high)
    last = after - high
    return max(_first_step(high), min(2 * last, high // 2) if last <= high else 0)


def size_for(points: Iterable[Point], room_bytes: int) -> int | None:
    """Return the size whose live bytes would fill the room, by large sizes that are known.

    One point gives a proportion, two a line, three a parabola.
    """
    known = _spread(points)
    if not known:
        return None
    if len(known) == 1:
        size, live_bytes = known[0]
        return max(1, size * room_bytes // max(1, live_bytes))
    (x0, y0), (x1, y1) = known[-2:]
    slope = (y1 - y0) / (x1 - x0)
    if slope <= 0:
        return None
    curvature = 0.0
    if len(known) == 3:
        x, y = known[0]
        curvature = (slope - (y0 - y) / (x0 - x)) / (x1 - x)
    return max(1, math.floor(_solve(x1, x0, y1, slope, curvature, room_bytes)))


def _spread(points: Iterable[Point]) -> list[Point]:
    """Return up to three points from the largest down, each well below the one above it.

    Neighbours at the end of a search differ by less than one run does from the next: a line
    through them may point anywhere.
    """
    found: list[Point] = []
    for point in sorted(dict(points).items(), reverse=True):
        if not found or point[0] <= APART * found[-1][0]:
            found.append(point)
    return found[2::-1]


def _solve(x1: int, x0: int, y1: int, slope: float, curvature: float, room_bytes: int) -> float:
    """Solve y1 + slope (x - x1) + curvature (x - x1) (x - x0) = room for x, as distance from x1."""
    missing = room_bytes - y1
    linear = slope + curvature * (x1 - x0)
    inside = linear * linear + 4 * curvature * missing
    if abs(curvature) * abs(missing) < 1e-9 * linear * linear or inside < 0 or linear <= 0:
        return x1 + missing / slope
    return x1 + (math.sqrt(inside) - linear) / (2 * curvature)
