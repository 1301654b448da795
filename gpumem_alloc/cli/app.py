"""The commands and what they accept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from gpumem_alloc.cli import bench as benchmarks
from gpumem_alloc.cli import bridge, commands, explain_fault
from gpumem_alloc.errors import OptionError
from gpumem_alloc.isolation import LedgerError
from gpumem_alloc.recording import RecordingError
from gpumem_alloc.replay import DEFAULT_ALLOCATORS, DEFAULT_LAG_MS, SettingsError
from gpumem_alloc.trace import TraceError

BAD_INPUT = 2

app = typer.Typer(
    help="A GPU-memory allocator for PyTorch: record, replay, measure.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(bridge.app, name="bridge")

TraceFile = Annotated[
    Path, typer.Argument(help="A memory snapshot or an RMM log, also .gz, or our own file.")
]
DeviceOption = Annotated[
    int | None, typer.Option(help="Which device of the trace; the first with events by default.")
]


@app.command()
def replay(
    trace: TraceFile,
    allocator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:key=value;...]",
            help=f"May be given often. By default {', '.join(DEFAULT_ALLOCATORS)}.",
        ),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(help="Memory an allocator may hold: bytes, or 30GiB.")
    ] = None,
    repeat: Annotated[int, typer.Option(help="Rounds in one process.")] = 1,
    gpu_lag: Annotated[
        float, typer.Option(help="How far the GPU runs behind the host, in ms.")
    ] = DEFAULT_LAG_MS,
    device: DeviceOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of a table.")
    ] = False,
) -> None:
    """Replay a recorded run through PyTorch's policies and ours."""
    settings = commands.ReplaySettings(
        allocators=allocator or list(DEFAULT_ALLOCATORS),
        limit=limit,
        repeat=repeat,
        lag_ms=gpu_lag,
        device=device,
    )
    raise typer.Exit(commands.replay(trace, settings, as_json=json))


@app.command()
def convert(
    source: TraceFile,
    target: Annotated[Path, typer.Argument(help="Written in our own format.")],
    device: DeviceOption = None,
) -> None:
    """Write a trace in our own format, which is read fastest."""
    commands.convert(source, target, device)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)
def record(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="Run as python would run it; arguments follow.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="A .pickle or .pickle.gz keeps PyTorch's form; else our own."
        ),
    ],
) -> None:
    """Run a script and record what it allocates, also if it fails."""
    raise typer.Exit(commands.record(script, context.args, output))


@app.command()
def microbench(
    options: Annotated[str, typer.Option(help='Options of ours, "key:value,...".')] = "",
    seconds: Annotated[float, typer.Option(help="Time for each single measurement.")] = 0.25,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of a table.")
    ] = False,
) -> None:
    """Measure one allocate + free on this host, beside malloc + free."""
    commands.microbench(options, seconds, as_json=json)


@app.command(name="explain-fault")
def explain(
    ledger: Annotated[
        Path | None,
        typer.Argument(help="gpumem_alloc-ledger-PID.json; by default the newest one here."),
    ] = None,
    address: Annotated[
        list[str] | None, typer.Option(metavar="0x...", help="Of the access. May be given often.")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            help="What compute-sanitizer, cuda-gdb, the kernel (Xid 31) or PyTorch printed; - for "
            "stdin. May be given often."
        ),
    ] = None,
    core: Annotated[
        Path | None, typer.Option(help="A GPU core dump, which cuda-gdb reads, or its text.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of tables.")
    ] = False,
) -> None:
    """Say which tensor a fault in the no-sharing mode is about."""
    explain_fault.run(ledger, address or [], log or [], core, as_json=json)


@app.command(name="verify-isolation")
def verify_isolation(
    isolation: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="stream, packed, tensor or strict; by default what GPUMEM_ALLOC_CONF says, else "
            "strict.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of a table.")
    ] = False,
) -> None:
    """Attack what the no-sharing mode promises; exit code 1 if something is not held."""
    from gpumem_alloc.cli import verify

    raise typer.Exit(verify.run(isolation, as_json=json))


class _HandedOn(TyperCommand):
    """A command that reads its arguments itself, --help and -- too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []


@app.command(cls=_HandedOn)
def bench(context: typer.Context) -> None:
    """Measure PyTorch's allocators and ours on this card, or on your own script."""
    raise typer.Exit(benchmarks.run(context.args, context.command_path))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; bad input is told on stderr and has exit code 2."""
    command = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name="python -m gpumem_alloc", standalone_mode=False)
    except LedgerError as error:  # three lines, and they stay three
        print(f"gpumem_alloc: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except (TraceError, SettingsError, RecordingError, OptionError) as error:
        fail(str(error))
    except typer.Abort:
        sys.exit(130)
    except Exception as error:
        format_message = getattr(error, "format_message", None)  # of a usage error
        if format_message is None:
            raise
        fail(format_message() or "a command is missing; --help lists them")
    sys.exit(code if isinstance(code, int) else 0)


def fail(text: str) -> NoReturn:
    """Say in one line what is wrong with the input, and exit."""
    print(f"gpumem_alloc: {' '.join(text.split())}", file=sys.stderr)
    sys.exit(BAD_INPUT)
