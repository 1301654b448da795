"""What a program that has the no-sharing mode leaves behind when it ends after a fault.

At the end of the process, if something was found or a CUDA error was seen, a short report goes to
stderr and the ledger to a file (ledger_file.py). Otherwise nothing is printed or written. The exit
code stays as it is, exceptions are shown as ever, and nothing here can fail the process.

An error is seen when it ends the program or a thread. Others, that the program caught or lost,
show in the last check: it looks at the tensors that still live, and a context that has failed
refuses it. That check waits for the device; after a KeyboardInterrupt it is left out. A process
that ends by a signal or os._exit(), as forked workers of multiprocessing do, reports nothing, and
neither does one with GPUMEM_ALLOC_LEDGER=off.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

from gpumem_alloc.errors import AllocatorError
from gpumem_alloc.isolation import fault_text, findings
from gpumem_alloc.isolation.ledger_file import ENVIRONMENT

_QUICK_BYTES = 8 << 20  # of a ledger that is read in well under a second
_installed = False
_seen: dict[int, str] = {}  # by process: the first line of the first CUDA error
_interrupted = False


def install() -> None:
    """Report at the end of this process; the second call does nothing."""
    global _installed
    if _installed or os.environ.get(ENVIRONMENT) == "off":
        return
    _installed = True
    previous, previous_of_threads = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
        with contextlib.suppress(Exception):
            note(error)
        previous(kind, error, traceback)

    def hook_of_threads(arguments: threading.ExceptHookArgs) -> None:
        with contextlib.suppress(Exception):
            note(arguments.exc_value)
        previous_of_threads(arguments)

    sys.excepthook, threading.excepthook = hook, hook_of_threads
    atexit.register(_at_exit)


def note(error: BaseException | None) -> None:
    """Remember an exception if it, or one that led to it, is a CUDA error."""
    global _interrupted
    _interrupted = _interrupted or isinstance(error, KeyboardInterrupt)
    for _ in range(100):  # a chain may be a circle
        if error is None:
            return
        if isinstance(error, Exception) and is_cuda_error(str(error)):
            _seen.setdefault(os.getpid(), str(error).partition("\n")[0])
            return
        error = error.__cause__ or error.__context__


def is_cuda_error(text: str) -> bool:
    """Return whether an exception's text tells of a device that failed; out of memory is none."""
    if "out of memory" in text.lower():
        return False
    return "CUDA error" in text or bool(fault_text.parse(text).errors)


def _at_exit() -> None:
    with contextlib.suppress(Exception):
        error = _seen.get(os.getpid()) or _last_check()
        found = findings.violations()
        if error is not None or found:
            _report(error, found)


def _last_check() -> str | None:
    """Look at what still lives; returns the error of a device that has failed."""
    if _interrupted:
        return None
    try:
        findings.check()
    except AllocatorError as error:
        return str(error).partition("\n")[0] if is_cuda_error(str(error)) else None
    return None


def _report(error: str | None, found: list[findings.Violation]) -> None:
    from gpumem_alloc.isolation import explain, ledger_file  # which few programs need

    try:
        written: Path | None = ledger_file.save_ledger(error=error)
        failure = ""
    except Exception as why:
        written, failure = None, f"{type(why).__name__}: {why}"
    is_quick = written is not None and written.stat().st_size < _QUICK_BYTES
    ledger = ledger_file.read_ledger(written) if written is not None and is_quick else None
    lines = []
    if error is not None:
        lines.append(f"gpumem_alloc: a CUDA error was seen in the no-sharing mode: {error}")
    if found:
        lines.append(found[0].text)
        lines += explain.made_lines(ledger, found[0]) if ledger is not None else []
        if len(found) > 1:
            lines.append(f"({len(found)} such findings, of which this is the first.)")
    if error is not None and ledger is not None:
        lines += explain.guess_lines(ledger)
    if written is None:
        lines.append(f"The ledger of tensors could not be written: {failure}")
    else:
        lines.append(f"The ledger of tensors is in {written}.")
        lines.append(f"Run: python -m gpumem_alloc explain-fault {written}")
    print("\n".join(lines), file=sys.stderr, flush=True)
