"""`python -m gpumem_alloc bridge build|status`."""

from __future__ import annotations

import json as jsons
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from gpumem_alloc.bridge import obtain, status
from gpumem_alloc.bridge.errors import BridgeError

app = typer.Typer(
    help="The bridge to PyTorch's own allocator interface: compiled once for each torch.",
    no_args_is_help=True,
)
FAILED = 1
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@app.command()
def build(
    force: Annotated[
        bool, typer.Option(help="Compile also if it is there, or if it failed before.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Compile the bridge for the installed torch, and print where it is."""
    found = status.installed_torch()
    if found is None:
        print(
            "gpumem_alloc: torch is not installed.\n"
            "The bridge is compiled for the torch of this environment.\n"
            "Install a CUDA build of torch first.",
            file=sys.stderr,
        )
        raise typer.Exit(FAILED)
    try:
        bridge = obtain.obtain(found, force=force, retry=True)
    except BridgeError as error:
        print(f"gpumem_alloc: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    result = {"module": str(bridge.module), "torch": found.version, "log": str(bridge.log)}
    print(jsons.dumps(result) if json else bridge.module)


@app.command(name="status")
def show_status(json: AsJson = False) -> None:
    """Say what enable() would do here, what is missing for the bridge, and what brings it."""
    report = status.collect(status.installed_torch())
    if json:
        print(jsons.dumps(report))
    else:
        _print(Console(), report)


def _print(console: Console, report: dict[str, Any]) -> None:
    def line(name: str, value: Any) -> None:
        console.print(f"{name:<14} {value}", highlight=False, markup=False, soft_wrap=True)

    sources = f", sources {report['source_id']}" if report["source_id"] else ""
    line("gpumem_alloc", f"{report['version']}{sources}")
    line("CUDA kernels", "built in" if report["cuda_kernels"] else "none (built without nvcc)")
    cuda = f", CUDA {report['cuda'] or 'not in it'}" if report["torch"] else ""
    line("torch", f"{report['torch'] or 'not installed'}{cuda}")
    if report["source_id"]:  # else nothing was looked for
        for name in ("compiler", "cuda_headers", "python_headers", "folder"):
            line(name.replace("_", " "), report[name] or "not found")
        line("built bridge", report["module"] or "none")
    for text in report["unusable"]:
        line("unusable", text)
    line("enable() will", report["then"])
    for problem, fix in zip(report["problems"], report["fixes"], strict=True):
        line("problem", problem)
        line("what to do", fix)
