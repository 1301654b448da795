"""Replay of a recorded run through PyTorch's policies and ours, without a GPU."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.trace import Steps, Trace, make_steps

DEFAULT_ALLOCATORS = ("native", "native-expandable", "split", "paged")
DEFAULT_LAG_MS = 20.0
MAX_ROUNDS = 1_000_000

Report = dict[str, Any]


class SettingsError(ValueError):
    """An allocator, an option or a number that a replay cannot use; one line."""


@dataclass(frozen=True)
class AllocatorSpec:
    """An allocator by name and its options as text, `native:max_split_size_mb=64`."""

    name: str
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ";".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{options}" if options else self.name


def parse_allocator(text: str) -> AllocatorSpec:
    """Read NAME[:key=value;...]; raises SettingsError naming the nearest valid name or key."""
    name, _, options_text = text.partition(":")
    options: dict[str, str] = {}
    for setting in filter(None, options_text.split(";")):
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not key or not value:
            raise SettingsError(f"option '{setting}' of '{name}' is not of the form key=value")
        if key in options:
            raise SettingsError(f"option '{key}' of '{name}' is given twice")
        options[key] = value
    names = _C.replay_allocators()
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise SettingsError(f"there is no allocator '{name}'; the nearest is '{nearest}'")
    try:
        _C.check_replay_settings(name, list(options.items()))
    except _C.StatusError as error:
        raise SettingsError(f"{name}: {' '.join(str(error.args[1]).split())}") from None
    return AllocatorSpec(name, options)


def replay(
    trace: Trace,
    allocators: Sequence[AllocatorSpec | str] = DEFAULT_ALLOCATORS,
    *,
    limit_bytes: int = 0,
    repeat: int = 1,
    lag_ms: float = DEFAULT_LAG_MS,
    progress: Callable[[str], None] = lambda _: None,
) -> Report:
    """Replay a trace through each allocator in turn and return the report of `replay --json`.

    Sizes are bytes, 0 no limit. `progress` is told each allocator before its turn. Raises
    SettingsError for a bad setting, TraceError for a trace that cannot be prepared, and
    `_C.StatusError` if an allocator fails otherwise than by running out of memory.
    """
    if not 1 <= repeat <= MAX_ROUNDS:
        raise SettingsError(f"the number of rounds must be 1 to {MAX_ROUNDS}, not {repeat}")
    if not 0 <= lag_ms < 1e9:
        raise SettingsError(f"the lag must be 0 to 1e9 ms, not {lag_ms:g}")
    if limit_bytes < 0:
        raise SettingsError("the limit must not be negative")
    specs = [parse_allocator(str(allocator)) for allocator in allocators]
    steps = make_steps(trace)
    results = []
    for spec in specs:
        progress(str(spec))
        results.append(_run(steps, spec, limit_bytes, repeat, lag_ms))
    return {
        "trace": trace.name,
        "device": trace.device,
        "events": steps.event_count,
        "skipped_frees": steps.skipped_frees,
        "peak_live_bytes": steps.peak_live_bytes,
        "results": results,
    }


def _run(steps: Steps, spec: AllocatorSpec, limit_bytes: int, repeat: int, lag_ms: float) -> Report:
    result = _C.replay(
        steps=steps.steps,
        block_count=steps.block_count,
        event_count=steps.event_count,
        segments=steps.segments,
        start_segments=steps.start_segments,
        start_blocks=steps.start_blocks,
        allocator=spec.name,
        options=list(spec.options.items()),
        limit_bytes=limit_bytes,
        repeat=repeat,
        lag_ns=round(lag_ms * 1e6),
    )
    peak_live, peak_reserved = result["peak_live_bytes"], result["peak_reserved_bytes"]
    for round_ in result["rounds"]:
        round_["address_hash"] = f"{round_['address_hash']:016x}"
    kept = ("end_reserved_bytes", "end_live_bytes")
    calls = ("driver_calls", "driver_calls_second_half", "driver_ms", "driver_ms_second_half")
    rest = ("alloc_retries", "oom", "rounds", "replay_seconds")
    return {
        "allocator": spec.name,
        "options": spec.options,
        "peak_reserved_bytes": peak_reserved,
        **{key: result[key] for key in kept},
        "utilization": peak_live / peak_reserved if peak_reserved else 1.0,
        **{key: result[key] for key in calls + rest},
    }
