"""Record the allocations of a script: our own events where ours is in use, else PyTorch's history.

PyTorch's history can only be started once CUDA is, and starting CUDA fixes which allocator is in
use. So it is started at the moment when the script itself starts CUDA.
"""

from __future__ import annotations

import gzip
import os
import pickle
import runpy
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from gpumem_alloc import _C
from gpumem_alloc.options import ENVIRONMENT
from gpumem_alloc.trace.events import RECORD, Records, Trace, no_records
from gpumem_alloc.trace.own import write_trace
from gpumem_alloc.trace.pytorch import traces_of_snapshot

MAX_EVENTS = 10_000_000
PICKLE_SUFFIXES = (".pickle", ".pkl")


class RecordingError(RuntimeError):
    """Nothing could be recorded; one line."""


def ring_events() -> Records:
    """Return what our event ring holds, oldest first, of all devices."""
    return np.frombuffer(_C.event_ring_records(), dtype=RECORD)


def record_script(script: Path, arguments: list[str], output: Path) -> int:
    """Run a script as `python script arguments` would and write what it allocated.

    The file is written when the script ends, also when it fails; its exit code is returned. Raises
    RecordingError if the script is not there, if no file can be written there (before the script
    runs), or if there was nothing to record.
    """
    if not script.is_file():
        raise RecordingError(f"{script}: there is no such script")
    _check_writable(output)
    try:
        import torch
    except ImportError:
        raise RecordingError("torch is not installed, so there is nothing to record") from None
    _ask_for_the_ring()
    history = _History(torch)
    code = _run(script, arguments)
    write_recording(history, output)
    return code


def _check_writable(output: Path) -> None:
    if not output.parent.is_dir():
        raise RecordingError(f"{output.parent}: there is no such folder")
    if output.is_dir():
        raise RecordingError(f"{output}: is a folder")
    try:
        with tempfile.TemporaryFile(dir=output.parent):
            pass
    except OSError as error:
        raise RecordingError(f"{output}: cannot be written: {error.strerror}") from None


def _ask_for_the_ring() -> None:
    """Let an allocator that the script enables keep its events, unless it says otherwise."""
    given = os.environ.get(ENVIRONMENT, "")
    if "event_ring_entries" not in given:
        ours = f"event_ring_entries:{MAX_EVENTS}"
        os.environ[ENVIRONMENT] = f"{given},{ours}" if given else ours


class _History:
    """PyTorch's own history, from the moment CUDA starts; not where ours is in use."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch = torch
        self.is_on = False
        torch.cuda._lazy_call(self.start)

    def start(self) -> None:
        if not ours_is_in_use():
            memory = self.torch.cuda.memory
            memory._record_memory_history("all", context=None, max_entries=MAX_EVENTS)
            self.is_on = True

    def snapshot(self) -> dict[str, Any]:
        snapshot: dict[str, Any] = self.torch.cuda.memory._snapshot()
        return snapshot


def ours_is_in_use() -> bool:
    """Say whether torch allocates through us now."""
    import gpumem_alloc

    return bool(gpumem_alloc.is_enabled())


def _run(script: Path, arguments: list[str]) -> int:
    saved_argv, saved_path = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    return 0


def write_recording(history: _History, output: Path) -> None:
    """Write our own events, else PyTorch's: as a pickle if the name asks for one, else as ours."""
    is_pickle = output.name.removesuffix(".gz").endswith(PICKLE_SUFFIXES)
    if ours_is_in_use():
        events = ring_events()
        if not len(events):
            raise RecordingError("our allocator was in use, and its event ring holds nothing")
        write_trace(Trace(name=output.name, events=events, has_times=True), output)
    elif not history.is_on:
        raise RecordingError("the script never used CUDA, so there is nothing to record")
    elif is_pickle:
        opener: Any = gzip.open if output.suffix == ".gz" else open
        with opener(output, "wb") as file:
            pickle.dump(history.snapshot(), file)
    else:
        traces = traces_of_snapshot(output, history.snapshot())
        events = np.concatenate([trace.events for trace in traces] or [no_records()])
        start = np.concatenate([trace.start for trace in traces] or [no_records()])
        write_trace(Trace(output.name, events, has_times=True, start=start), output)
