"""From the rows of a results file to the figures of the table.

Card memory: base is what a native run's card holds beyond its allocator (context, libraries), and
    card_ratio = (card peak - base) / live peak
is the worst over the rounds. Live is the allocator's own peak of allocated bytes.

Step time: in each round a run is compared, step by step, with the faster of the round's two native
runs (the one with the smaller sum of steps). step_ratio is the median of all these ratios; its 95 %
interval comes from a bootstrap over step numbers, all rounds of a step staying together, since the
steps of one run differ far more than the rounds of one step. The first quarter of the steps, in
which libraries start up and memory is first obtained, counts in run_s and not here. (run_s leaves
out the first step alone, in which the model is made.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

PYTORCHS = ("native", "expandable", "cudaMallocAsync")

Row = dict[str, Any]
NATIVES = ("native", "expandable")  # what ours is compared with
RESAMPLES = 4000
MAX_CARD_RATIO = 1.03
MAX_STEP_RATIO = 1.02


def warm_up(steps: int) -> int:
    """Return how many first steps are not compared."""
    return steps // 4


def summarise(rows: list[Row]) -> list[Row]:
    """Return one entry for each workload and allocator, in the order of the rows."""
    good = [row for row in rows if "error" not in row]
    timed = [row for row in good if not row["deterministic"]]
    names = dict.fromkeys(
        (row["workload"], row["allocator"]) for row in rows if not row["deterministic"]
    )
    return [_entry(good, timed, rows, *name) for name in names]


def _entry(good: list[Row], timed: list[Row], rows: list[Row], workload: str, name: str) -> Row:
    mine = _of(timed, workload, name)
    entry: Row = {
        "workload": workload,
        "allocator": name,
        "runs": len(mine),
        "errors": [
            row["error"]
            for row in rows
            if "error" in row and (row["workload"], row["allocator"]) == (workload, name)
        ],
        "losses": losses(good, workload, name),
    }
    if not mine:
        return entry
    if doors := sorted({row["door"] for row in mine if "door" in row}):
        entry["door"] = "/".join(doors)
    natives = _by_round(timed, workload)
    ratios = step_ratios(mine, natives)
    low, middle, high = interval(ratios)
    return entry | {
        "live_peak_bytes": max(row["live_peak_bytes"] for row in mine),
        "reserved_peak_bytes": max(row["reserved_peak_bytes"] for row in mine),
        "card_peak_bytes": max((_card(row) for row in mine), default=0),
        "card_ratio": card_ratio(mine, natives),
        "step_ratio": middle,
        "step_ratio_low": low,
        "step_ratio_high": high,
        "step_ms": float(np.median([_measured(row) for row in mine])),
        "run_s": float(np.median([row["run_s"] for row in mine])),
    }


def _of(rows: Iterable[Row], workload: str, allocator: str) -> list[Row]:
    return [row for row in rows if (row["workload"], row["allocator"]) == (workload, allocator)]


def _by_round(rows: Iterable[Row], workload: str) -> dict[int, dict[str, Row]]:
    rounds: dict[int, dict[str, Row]] = {}
    for name in NATIVES:
        for row in _of(rows, workload, name):
            rounds.setdefault(row["round"], {})[name] = row
    return rounds


def _card(row: Row) -> int:
    return int(row["card"]["peak_bytes"]) if row["card"] else 0


def _measured(row: Row) -> Any:
    times = np.asarray(row["step_ms"])
    return times[warm_up(len(times)) :]


def card_ratio(mine: list[Row], natives: dict[int, dict[str, Row]]) -> float | None:
    """Return the worst (card peak - base) / live; None where the card could not be asked."""
    found = []
    for row in mine:
        native = natives.get(row["round"], {}).get("native")
        if native is not None and native["card"] and row["card"]:
            base_bytes = _card(native) - native["reserved_peak_bytes"]
            found.append((_card(row) - base_bytes) / row["live_peak_bytes"])
    return max(found, default=None)


def step_ratios(mine: list[Row], natives: dict[int, dict[str, Row]]) -> Any:
    """Return time / time of the faster native run, as an array of rounds by steps."""
    ratios = []
    for row in mine:
        runs = [_measured(native) for native in natives.get(row["round"], {}).values()]
        if runs:
            ratios.append(_measured(row) / min(runs, key=lambda times: float(times.sum())))
    return np.asarray(ratios)


def interval(ratios: Any) -> tuple[float | None, float | None, float | None]:
    """Return the median of rounds by steps, between the ends of its 95 % interval."""
    if ratios.size == 0:
        return None, None, None
    random = np.random.default_rng(1)
    steps = ratios.shape[1]
    picks = random.integers(0, steps, size=(RESAMPLES, steps))
    medians = [float(np.median(ratios[:, pick])) for pick in picks]
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(np.median(ratios)), float(high)


def losses(rows: list[Row], workload: str, allocator: str) -> str:
    """Say how the losses compare with native's: with deterministic kernels where such runs exist.

    "equal", "native" (it is the reference), "not comparable" (native differs from itself), "not
    run", or from which step on they differ.
    """
    fixed = [row for row in rows if row["deterministic"]]
    of = fixed or rows
    natives = [row["losses"] for row in _of(of, workload, "native")]
    mine = [row["losses"] for row in _of(of, workload, allocator)]
    if allocator == "native" and natives:
        same = all(each == natives[0] for each in natives)
        return "native" if same else "not comparable"
    if not natives or not mine:
        return "not run"
    differing = [first for each in mine if (first := _first_difference(each, natives[0])) >= 0]
    if not differing:
        return "equal"
    if any(each != natives[0] for each in natives):
        return "not comparable"
    return f"differ from step {min(differing)}"


def _first_difference(left: list[str], right: list[str]) -> int:
    if left == right:
        return -1
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def failures(entries: list[Row]) -> list[str]:
    """List what must hold for our allocators and does not, one line each."""
    found = []
    for entry in entries:
        where = f"{entry['workload']}, {entry['allocator']}"
        found += [f"{where}: {error}" for error in entry["errors"]]
        if entry["allocator"] in PYTORCHS or "step_ratio" not in entry:
            continue
        if entry["card_ratio"] is not None and entry["card_ratio"] > MAX_CARD_RATIO:
            found.append(f"{where}: (card - base) / live is {entry['card_ratio']:.3f}")
        if entry["step_ratio_low"] is not None and entry["step_ratio_low"] > MAX_STEP_RATIO:
            found.append(f"{where}: steps take {entry['step_ratio']:.3f} of native's time")
        if entry["losses"].startswith("differ"):
            found.append(f"{where}: losses {entry['losses']}")
    return found
