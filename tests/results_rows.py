"""Made-up rows of results files, for tests of what is computed from them."""

from __future__ import annotations

from typing import Any

from benchmarks.store import Results, Row

MIB = 1 << 20
STEADY = (99.0, 99.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0)  # of eight steps two are not compared
OURS_DEFAULT = "paged"


def row(allocator: str, step_ms: Any = STEADY, **changes: Any) -> Row:
    """A run alone on the card: 900 MiB live, 1000 reserved, 1100 on the card."""
    step_ms = list(step_ms)
    made: Row = {
        "kind": "times",
        "workload": "buffers",
        "allocator": allocator,
        "session": 0,
        "round": 0,
        "group": None,
        "steps": None,
        "size": None,
        "deterministic": False,
        "step_ms": step_ms,
        "losses": ["0x1p+0"] * len(step_ms),
        "startup_s": 1.0,
        "run_s": sum(step_ms[1:]) / 1e3,
        "live_peak_bytes": 900 * MIB,
        "requested_peak_bytes": 899 * MIB,
        "reserved_peak_bytes": 1000 * MIB,
        "alloc_retries": 0,
        "ooms": 0,
        "card": card(1100),
        "driver": None,
    }
    return made | ({"door": "bridge"} if allocator.startswith(OURS_DEFAULT) else {}) | changes


def card(peak_mib: int, timeline: list[list[float]] | None = None) -> dict[str, Any]:
    """What the card said of a run."""
    return {
        "source": "nvml",
        "start_bytes": 600 * MIB,
        "peak_bytes": peak_mib * MIB,
        "polls_per_second": 900.0,
        "longest_gap_ms": 3.0,
        "timeline": timeline or [[0.0, 10 * MIB], [5.0, peak_mib * MIB], [9.0, 20 * MIB]],
    }


def failed(allocator: str, error: str, **changes: Any) -> Row:
    """A run that gave nothing."""
    kept = ("kind", "workload", "session", "round", "group", "steps", "size", "deterministic")
    whole = row(allocator, **changes)
    made = {name: whole[name] for name in kept}
    return made | {"allocator": allocator, "error": error, "out_of_memory": False}


def session(date: str = "2026-01-01 10:00 UTC", **environment: Any) -> dict[str, Any]:
    """One start of the program."""
    made = {
        "gpu": "NVIDIA H200",
        "gpu_bytes": 141 << 30,
        "driver": "580.1",
        "torch": "2.11.0",
        "cuda": "13.0",
        "gpumem_alloc": "0.1.0",
        "git_id": "abc",
    }
    return {"date": date, "command": "python -m benchmarks", "environment": made | environment}


def results(*rows: Row, sessions: list[dict[str, Any]] | None = None) -> Results:
    """A results file's content."""
    return Results(sessions or [session()], list(rows))
