"""Reports as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

MIB = 1 << 20
MEMORY_CALLS = ("create", "map", "set_access", "unmap", "release", "malloc", "free")
Report = dict[str, Any]


def mib(size_bytes: int) -> str:
    """Return an amount of bytes in MiB, without the unit."""
    return f"{size_bytes / MIB:,.0f}"


def print_replay(console: Console, report: Report, notes: Sequence[str] = ()) -> None:
    """Print the report of a replay; sizes in MiB."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{report['events']:,} events, device {report['device']}, "
        f"at most {mib(report['peak_live_bytes'])} MiB live",
        title_justify="left",
    )
    table.add_column("allocator", overflow="fold", min_width=17)
    for name in (
        "peak\nMiB",
        "used",
        "idle\nMiB",
        "driver\ncalls",
        "driver\nms",
        "2nd\nhalf",
        "waits",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for result in report["results"]:
        table.add_row(*_replay_row(result, report["peak_live_bytes"]))
    console.print(table)
    for result in report["results"]:
        if result["oom"] is not None:
            console.print(_oom_text(result), highlight=False)
    if report["skipped_frees"]:
        console.print(
            f"Frees that were skipped: {report['skipped_frees']:,}. Their blocks were allocated "
            "before the recording began, and the file does not say where.",
            highlight=False,
        )
    for note in notes:
        console.print(note, highlight=False)


def _name(result: Report) -> str:
    options = ";".join(f"{key}={value}" for key, value in result["options"].items())
    return f"{result['allocator']}:{options}" if options else str(result["allocator"])


def _replay_row(result: Report, peak_live_bytes: int) -> list[str]:
    calls = result["driver_calls"]
    on_memory = sum(calls[name] for name in MEMORY_CALLS)
    is_whole = result["oom"] is None
    return [
        _name(result),
        mib(result["peak_reserved_bytes"]),
        f"{result['utilization']:.1%}" if is_whole else "OOM",
        mib(result["peak_reserved_bytes"] - peak_live_bytes) if is_whole else "",
        f"{on_memory:,}",
        f"{result['driver_ms']:,.1f}",
        f"{result['driver_ms_second_half']:,.1f}",
        f"{calls['synchronize']:,}",
    ]


def _oom_text(result: Report) -> str:
    oom = result["oom"]
    return (
        f"{_name(result)} ran out of memory at event {oom['event']:,}: {oom['requested_bytes']:,} "
        f"bytes were asked for while it held {mib(oom['reserved_bytes'])} MiB, of which "
        f"{mib(oom['live_bytes'])} MiB were live."
    )


def print_microbench(console: Console, result: dict[str, dict[str, float]]) -> None:
    """Print the nanoseconds of a pair, by size, by other live blocks and by threads."""
    table = Table(box=box.SIMPLE_HEAD, title="ns per allocate + free", title_justify="left")
    for name in ("case", "ours", "malloc"):
        table.add_column(name, justify="left" if name == "case" else "right")
    for size, ns in result["pair_ns"].items():
        table.add_row(f"{int(size):,} bytes", f"{ns:.0f}", f"{result['malloc_pair_ns'][size]:.0f}")
    for count, ns in result["pair_ns_live"].items():
        table.add_row(f"512 bytes, {int(count):,} other live blocks", f"{ns:.0f}", "")
    for count, ns in result["threads"].items():
        table.add_row(f"512 bytes, {count} threads, wall per pair of each", f"{ns:.0f}", "")
    console.print(table)
