"""The ledger as a file: what explains a fault when the process and its CUDA context are gone.

JSON, of one object:

    {"format": 1, "pid": 4711, "written_at_ns": ..., "program": [...], "torch": "2.14.1",
     "isolation": "strict", "options": {...}, "error": "CUDA error: ..." or null,
     "columns": [...], "devices": [{"device": 0, "shortcoming": "", "entries": [[...], ...],
                                    "stacks": {"17": {"allocated": [...], "freed": [...]}}}],
     "violations": [{...}]}

An entry is a row of `columns`, which are those of gpumem_alloc.isolation.ledger(). `stacks` is null
where no Python stacks were recorded. A long one is compressed, and then its name ends in .gz.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.errors import AllocatorError
from gpumem_alloc.isolation import stacks
from gpumem_alloc.isolation.findings import Violation, report
from gpumem_alloc.isolation.ledger import COLUMNS, LARGEST_STATE, ledger

FORMAT = 1
ENVIRONMENT = "GPUMEM_ALLOC_LEDGER"
_PLAIN_ENTRIES = 10_000  # about 1 MB
_GZIP_MAGIC = b"\x1f\x8b"


class LedgerError(AllocatorError):
    """A file that is no ledger, or not a whole one; the text names it."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a ledger; see gpumem_alloc.isolation.ledger()."""

    device: int
    address: int
    requested_bytes: int
    window_begin: int
    window_end: int
    stream: int
    allocation_number: int
    free_number: int
    allocated_at_ns: int
    freed_at_ns: int
    state: int
    level: int


@dataclass(frozen=True)
class LedgerFile:
    """What a ledger says. Fields are those of the file."""

    path: Path
    pid: int
    written_at_ns: int
    program: list[str]
    torch: str
    isolation: str
    options: dict[str, Any]
    error: str | None
    shortcomings: dict[int, str]  # by device
    entries: list[Entry]
    violations: list[dict[str, Any]]
    stacks: dict[tuple[int, int], dict[str, list[stacks.Frame]]]  # by device and allocation


def default_path() -> Path:
    """Return where a ledger is written when nobody says: GPUMEM_ALLOC_LEDGER, or here."""
    named = os.environ.get(ENVIRONMENT)
    if named and named != "off":
        return Path(named)
    return Path(f"gpumem_alloc-ledger-{os.getpid()}.json")


def save_ledger(path: str | os.PathLike[str] | None = None, *, error: str | None = None) -> Path:
    """Write the ledger of all devices and return the path written.

    It needs no CUDA context that works, so it may be called after a fault. By default the file is
    GPUMEM_ALLOC_LEDGER, or gpumem_alloc-ledger-PID.json in the working directory; where there are
    more than 10,000 tensors it is compressed, and ".gz" is put behind its name. The file appears
    whole or not at all. `error` is kept with it. Raises OSError if it cannot be written, and
    AllocatorError in a forked child.
    """
    target = default_path() if path is None else Path(path)
    content = _content(error)
    count = sum(len(device["entries"]) for device in content["devices"])
    if count > _PLAIN_ENTRIES and target.suffix != ".gz":
        target = target.with_name(target.name + ".gz")
    data = json.dumps(content, separators=(",", ":")).encode()
    if target.suffix == ".gz":
        data = gzip.compress(data, compresslevel=3)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(data)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def _content(error: str | None) -> dict[str, Any]:
    now_ns = time.time_ns()
    torch = sys.modules.get("torch")
    options = _C.options_in_force()
    indices = range(_C.device_count()) if _C.is_made() else range(0)
    recorded = stacks.recorded()
    devices, violations = [], []
    for index in indices:
        rows, found = ledger(index), report(index)
        violations += [_plain(violation) for violation in found.violations]
        devices.append(
            {
                "device": index,
                "shortcoming": found.shortcoming,
                "entries": rows.tolist(),
                "stacks": stacks.of_rows(rows, recorded[index]) if index in recorded else None,
            }
        )
    return {
        "format": FORMAT,
        "pid": os.getpid(),
        "written_at_ns": now_ns,
        "program": list(sys.orig_argv),
        "torch": getattr(torch, "__version__", ""),
        "isolation": options["isolation"],
        "options": options,
        "error": error,
        "columns": COLUMNS,
        "devices": devices,
        "violations": violations,
    }


def _plain(violation: Violation) -> dict[str, Any]:
    return {**asdict(violation), "found": violation.found.hex()}


def read_ledger(path: str | os.PathLike[str]) -> LedgerFile:
    """Read a file of save_ledger(). Raises LedgerError for any other file, or a damaged one."""
    place = Path(path)
    try:
        data = place.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        content = json.loads(data)
    except OSError as error:
        if not isinstance(error, gzip.BadGzipFile):
            raise _unreadable(place, error.strerror or str(error)) from None
        raise _unreadable(place, f"its compression is damaged ({error})") from None
    except (EOFError, zlib.error) as error:
        raise _unreadable(place, f"its compression is damaged ({error})") from None
    except (ValueError, RecursionError) as error:
        raise _unreadable(place, f"it is no JSON ({error})") from None
    if not isinstance(content, dict) or "format" not in content:
        raise _unreadable(place, "it is another kind of JSON")
    if content["format"] != FORMAT:
        raise _unreadable(place, f"it has format {content['format']!r}, and this reads {FORMAT}")
    try:
        return _ledger_of(place, content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise _unreadable(place, f"a part of it is missing or has a wrong type ({what})") from None


def _ledger_of(path: Path, content: dict[str, Any]) -> LedgerFile:
    entries: list[Entry] = []
    frames: dict[tuple[int, int], dict[str, list[stacks.Frame]]] = {}
    columns = content["columns"]
    for device in content["devices"]:
        index = int(device["device"])
        for row in device["entries"]:
            entries.append(_entry(index, dict(zip(columns, row, strict=True))))
        for number, both in (device["stacks"] or {}).items():
            frames[index, int(number)] = {
                moment: [stacks.Frame(str(file), int(line), str(name)) for file, line, name in each]
                for moment, each in both.items()
            }
    return LedgerFile(
        path=path,
        pid=int(content["pid"]),
        written_at_ns=int(content["written_at_ns"]),
        program=[str(word) for word in content["program"]],
        torch=str(content["torch"]),
        isolation=str(content["isolation"]),
        options=_checked_options(dict(content["options"])),
        error=None if content["error"] is None else str(content["error"]),
        shortcomings={int(one["device"]): str(one["shortcoming"]) for one in content["devices"]},
        entries=entries,
        violations=[_checked_violation(dict(one)) for one in content["violations"]],
        stacks=frames,
    )


def _entry(device: int, row: dict[str, Any]) -> Entry:
    entry = Entry(device=device, **row)
    wrong = [name for name, value in row.items() if type(value) is not int or value < 0]
    if wrong:
        raise TypeError(f"{wrong[0]} is {row[wrong[0]]!r}")
    if entry.state > LARGEST_STATE or entry.level >= len(_C.isolation_levels()):
        raise ValueError(f"state {entry.state}, level {entry.level}")
    return entry


def _checked_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those that say where guards are."""
    if options["guard"] not in ("upper", "lower") or int(options["guard_alignment"]) < 1:
        raise ValueError(f"guard:{options['guard']}")
    return options


def _checked_violation(violation: dict[str, Any]) -> dict[str, Any]:
    Violation(**{**violation, "found": bytes.fromhex(violation["found"])})
    return violation


def _unreadable(path: Path, why: str) -> LedgerError:
    return LedgerError(
        f"{path} cannot be read as a ledger: {why}.\n"
        "A ledger is written by gpumem_alloc at the end of a program in which it found something, "
        "or by gpumem_alloc.isolation.save_ledger().\n"
        "Give the path of such a file."
    )
