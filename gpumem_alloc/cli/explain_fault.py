"""`python -m gpumem_alloc explain-fault`: what it reads and how it prints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from gpumem_alloc.isolation import explain, fault_text, ledger_file
from gpumem_alloc.isolation.explain import Explained, Explanation
from gpumem_alloc.isolation.ledger import STATES
from gpumem_alloc.isolation.ledger_file import (
    ENVIRONMENT,
    Entry,
    LedgerError,
    LedgerFile,
)

_ELF = b"\x7fELF"
_DEBUGGER_SECONDS = 300
_FILE_COLUMNS = 110


def run(
    ledger: Path | None, addresses: list[str], logs: list[Path], core: Path | None, *, as_json: bool
) -> None:
    """Explain a fault; raises LedgerError for what cannot be read."""
    read = ledger_file.read_ledger(ledger or _newest_ledger())
    text = fault_text.FaultText([_address(one) for one in addresses])
    for log in [*logs, *([core] if core else [])]:
        more = fault_text.parse(_text_of(log))
        text.addresses += more.addresses
        text.errors += more.errors
        text.kernels += more.kernels
    explanation = explain.explain(read, text)
    if as_json:
        print(json.dumps(explain.to_json(explanation)))
    else:
        console = Console()
        _print(console if console.is_terminal else Console(width=_FILE_COLUMNS), explanation)


def _newest_ledger() -> Path:
    found = list(Path().glob("gpumem_alloc-ledger-*.json*"))
    if not found:
        raise LedgerError(
            "no ledger was named, and there is none in this folder.\n"
            "A program with isolation that has found something or has seen a CUDA error leaves "
            f"gpumem_alloc-ledger-PID.json where it ran, or the file that {ENVIRONMENT} names.\n"
            "Go to that folder, give the file's path, or call gpumem_alloc.isolation.save_ledger() "
            "in the program."
        )
    return max(found, key=lambda path: path.stat().st_mtime_ns)


def _address(text: str) -> fault_text.FaultAddress:
    try:
        address = int(text, 16)
    except ValueError:
        address = -1
    if not 0 <= address < 1 << 64:
        raise LedgerError(
            f"--address {text}: not a hexadecimal address such as 0x7f1234567000.\n"
            "It is looked up among the addresses of tensors.\n"
            "Give the address of the access, or with --log the text that has it."
        )
    return fault_text.FaultAddress(address, source="--address")


def _text_of(path: Path) -> str:
    if str(path) == "-":
        return sys.stdin.read()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be read.\n{error.strerror or error}.\n"
            "Give the path of a log or core dump, or - for stdin."
        ) from None
    return _debugger_text(path) if data.startswith(_ELF) else data.decode(errors="replace")


def _debugger_text(core: Path) -> str:
    """What cuda-gdb says of a GPU core dump."""
    debugger = shutil.which("cuda-gdb")
    if debugger is None:
        raise LedgerError(
            f"{core} cannot be read.\n"
            "It is a core dump, and cuda-gdb, which reads it, is not on PATH.\n"
            f"Where it is, run cuda-gdb --batch -ex 'target cudacore {core}', and give what it "
            "prints with --log."
        )
    command = [debugger, "--batch", "-ex", f"target cudacore {core}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_DEBUGGER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LedgerError(
            f"cuda-gdb could not read {core}.\n{error}.\n"
            "Run it by hand, and give what it prints with --log."
        ) from None
    return done.stdout + done.stderr


def _print(console: Console, explanation: Explanation) -> None:
    def line(text: str = "") -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    ledger = explanation.ledger
    when = datetime.fromtimestamp(ledger.written_at_ns / 1e9).isoformat(" ", "milliseconds")
    line(f"{ledger.path}: process {ledger.pid}, isolation:{ledger.isolation}, written {when}")
    if ledger.error:
        line(f"It ended with: {ledger.error}")
    for violation in ledger.violations:
        line(f"\n{violation['text']}")
    for one in explanation.faults:
        line()
        line(_fault_text(one))
        if one.nearest:
            _print_nearest(console, ledger, one)
    _print_stacks(line, ledger, _shown(explanation))
    if explanation.candidates:
        _print_candidates(console, explanation)
    if explanation.notes:
        line()
    for note in explanation.notes:
        line(note)


def _fault_text(one: Explained) -> str:
    fault = one.fault
    access = f"{fault.access} of {fault.access_bytes} bytes" if fault.access_bytes else fault.access
    page = "the page " if fault.span_bytes > 1 else ""
    said = [part for part in (access, fault.kernel, fault.note) if part]
    text = f"{page}{fault.address:#x} ({'; '.join([fault.source, *said])})\n{one.sentence}"
    for entry in one.place.earlier[:2]:
        text += f"\nEarlier these addresses were those of {explain.name_of(entry)}."
    return text


def _table(title: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    for name in columns:
        right = name in ("bytes", "allocated", "freed", "weight")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    return table


def _print_nearest(console: Console, ledger: LedgerFile, one: Explained) -> None:
    table = _table(
        "the nearest tensors; times are seconds before the ledger was written",
        *(
            "tensor",
            "state",
            "the address is",
            "bytes",
            "begins at",
            "stream",
            "allocated",
            "freed",
        ),
    )
    for entry, side, away in one.nearest:
        table.add_row(
            _name(entry), STATES[entry.state], _side(side, away), f"{entry.requested_bytes:,}",
            f"{entry.address:#x}", f"{entry.stream:#x}",
            *(_ago(ledger, moment) for moment in (entry.allocated_at_ns, entry.freed_at_ns)),
        )  # fmt: skip
    console.print(table)


def _side(side: str, away: int) -> str:
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if away >= unit:
            return f"{away / unit:.1f} {name} {side}"
    return f"{away:,} B {side}"


def _print_candidates(console: Console, explanation: Explanation) -> None:
    table = _table(
        "likely tensors (a guess: gpumem_alloc/isolation/candidates.py has the weights)",
        *("weight", "tensor", "bytes", "freed", "why"),
    )
    for one in explanation.candidates:
        freed = _ago(explanation.ledger, one.entry.freed_at_ns)
        size = f"{one.entry.requested_bytes:,}"
        table.add_row(f"{one.weight:.1f}", _name(one.entry), size, freed, "; ".join(one.reasons))
    console.print(table)


def _shown(explanation: Explanation) -> list[Entry]:
    """Whose stacks are printed: of violations, and those pointed at, or else the likeliest."""
    entries = explanation.ledger.entries
    named = {(one["device"], one["allocation_number"]) for one in explanation.ledger.violations}
    violated = [one for one in entries if (one.device, one.allocation_number) in named]
    pointed = [one.place.entry for one in explanation.faults if one.place.entry is not None]
    likely = [one.entry for one in explanation.candidates[:2]]
    return list(dict.fromkeys([*violated[:4], *pointed, *likely]))


def _print_stacks(line: Callable[[str], None], ledger: LedgerFile, entries: list[Entry]) -> None:
    if entries and not ledger.stacks:
        line("\nNo Python stacks: gpumem_alloc.isolation.record_stacks() records them.")
    for entry in entries:
        for moment, frames in explain.frames_of(ledger, entry).items():
            if frames:
                line(f"\n{explain.name_of(entry)} was {moment} at, innermost first:")
                for frame in frames:
                    line(f"  {frame}")


def _name(entry: Entry) -> str:
    return f"{entry.device}:{entry.allocation_number}"


def _ago(ledger: LedgerFile, moment_ns: int) -> str:
    return f"{(ledger.written_at_ns - moment_ns) / 1e9:.3f}" if moment_ns else ""
