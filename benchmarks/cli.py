"""`python -m gpumem_alloc bench`: measure, show, compare, report.

Exit codes: 0; 1 if a run of ours failed or computed something else than PyTorch's; 2 for bad input;
3 if `compare` found a change past its threshold; 130 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import json as jsons
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import measure
from .asked import Options, UsageError
from .passes.plan import MAIN_ALLOCATORS, PASSES
from .report import outputs
from .store import ResultsError, load_all

BAD_INPUT = 2
CHANGED = 3
COMMAND = "command"

Files = Annotated[list[Path], typer.Argument(help="Results files; several make one table.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")]


class _Bench(TyperGroup):
    """What follows -- is a user's command, and no word of ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_Bench,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help"]},
)


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    workloads: Annotated[
        str, typer.Option(help="Names with commas between them, main, or all.")
    ] = "main",
    allocators: Annotated[
        str,
        typer.Option(
            help=f"Names with commas between them, main ({', '.join(MAIN_ALLOCATORS)}), or all."
        ),
    ] = "main",
    budget: Annotated[
        float, typer.Option(metavar="MINUTES", help="What does not fit is left out; 0: no end.")
    ] = 10.0,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Does it work here? A minute, few steps.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Of the times, or of the command; by default 3.")
    ] = None,
    passes: Annotated[str, typer.Option(help=f"Some of {', '.join(PASSES)}, or all.")] = "all",
    limit: Annotated[
        list[int] | None,
        typer.Option(
            min=1, metavar="GIB", help="For capacity; may be given often. The card by default."
        ),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Results of before whose peaks say which times fit in lockstep and what is no "
            "margin, where peaks are not among the passes; may be given often.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The results file.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the file of --out, else the newest one.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report, one file.")] = None,
    pictures: Annotated[Path | None, typer.Option(help="Write PNGs into this folder.")] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(help="Replay this recording; needs no GPU.")
    ] = None,
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Without a GPU, do not replay but fail.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install", help="Let pip install what workloads lack.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Measure PyTorch's allocators and ours on your card, or on your script.

    `bench -- python train.py` runs that command under each allocator, without a change to it.

    Without a GPU recorded runs are replayed.
    """
    if context.invoked_subcommand is not None:
        return
    options = Options(
        workloads=workloads, allocators=allocators, budget_minutes=budget, is_smoke=smoke,
        rounds=rounds, passes=passes, limits_gb=limit or [], known=known or [], out=out,
        resume=resume, html=html, pictures=pictures, traces=trace or [], require_gpu=require_gpu,
        install=install, as_json=json, command=context.meta.get(COMMAND),
    )  # fmt: skip
    raise typer.Exit(measure.bench(options))


@app.command()
def show(files: Files, json: AsJson = False) -> None:
    """Print the tables of results files."""
    results = load_all(files)
    print(jsons.dumps(outputs.as_json(results)) if json else outputs.text(results))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="A", help="A file, or a folder of them.")],
    after: Annotated[Path, typer.Argument(metavar="B")],
    threshold: Annotated[
        float,
        typer.Option(min=0, metavar="PERCENT", help="Worse by more, beyond noise: exit code 3."),
    ] = 2.0,
    json: AsJson = False,
) -> None:
    """Say what changed from A to B beyond noise."""
    from .report.compare_host import compare_files

    found = compare_files(before, after, threshold)
    print(jsons.dumps(found.as_json()) if json else found.text())
    if not found.changes:
        raise UsageError(
            "nothing was compared.\n"
            f"No workload was measured under one allocator in both {before} and {after}.\n"
            "Measure the same with both."
        )
    raise typer.Exit(CHANGED if found.changed else 0)


@app.command()
def ranks(
    ranks: Annotated[
        int | None, typer.Option(min=1, help="One process and device each; by default all devices.")
    ] = None,
    programs: Annotated[
        str, typer.Option(help="Names with commas between them; workloads of the bench, too.")
    ] = "ddp,fsdp,pipeline,tensor_parallel",
    allocators: Annotated[
        str, typer.Option(help="Names with commas between them.")
    ] = "native,expandable,paged",
    rounds: Annotated[
        int, typer.Option(min=1, help="At one, losses that differ are not comparable.")
    ] = 2,
    steps: Annotated[
        int | None, typer.Option(min=3, help="Of each program; the last one is not timed.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The results file.")] = Path("ranks.json"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the file of --out.")] = False,
    json: AsJson = False,
) -> None:
    """Measure programs on several devices at once: a line for each rank, the odd one named."""
    from .ranks import measure as on_ranks

    names, under = programs.split(","), allocators.split(",")
    raise typer.Exit(on_ranks.bench(names, under, ranks, rounds, steps, out, json, resume))


@app.command()
def report(
    files: Files,
    output: Annotated[Path, typer.Option("-o", "--output", help="An HTML file.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML file with tables and pictures, which opens offline."""
    outputs.write_html(load_all(files), output)
    print(output)


def main(arguments: list[str], program: str = f"python -m {__package__}") -> int:
    """Run the command line and return the exit code; bad input is told on stderr."""
    command: Any = typer.main.get_command(app)
    try:
        code = command.main(arguments, prog_name=program, standalone_mode=False)
    except (ResultsError, UsageError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return BAD_INPUT
    except Exception as error:
        format_message = getattr(error, "format_message", None)  # of a usage error
        if format_message is None:
            raise
        print(f"bench: {format_message()}", file=sys.stderr)
        if format_message().startswith("No such command"):
            print("A command of your own comes after --: bench -- python train.py", file=sys.stderr)
        return BAD_INPUT
    return code if isinstance(code, int) else 0
