"""How costs grow: with live blocks, streams, threads and memory held; curves and their exponents.

    python -m benchmarks.host.scale

Each allocator runs in a process of its own, one after the other, some 20 s each on an H200. Needs
g++ and CUDA's headers. The exponents are in benchmarks/host/scale_curves.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from ..workers.environment import environment
from . import host_process, scale_curves
from .compiled_loops import CompilationError, compile_loops
from .host_process import Row, names, run_worker
from .scale_worker import add_limits

HERE = Path(__file__).resolve().parent
ALLOCATORS = ("native", "expandable", "cudaMallocAsync", "paged@bridge")
RUN_SECONDS = 90
LIMITS = ("point_seconds", "live", "streams", "threads", "gb")


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Run every allocator so many times; the file is written after every run."""
    rows: list[Row] = []
    machine = environment()
    extra = [
        word
        for name in LIMITS
        for word in (f"--{name.replace('_', '-')}", str(getattr(arguments, name)))
    ]
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        library = compile_loops("scale", Path(folder))
        for index in range(arguments.rounds):
            for allocator in arguments.allocators[:: -1 if index % 2 else 1]:
                row = run_worker("scale_worker", allocator, library, extra, RUN_SECONDS)
                rows.append(row | {"round": index})
                if any("curves" in each for each in rows):
                    host_process.write(rows, arguments.out, machine)
                shown = row.get("error") or f"{row['took_s']} s"
                print(f"round {index}, {allocator}: {shown}", flush=True)
    return rows


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocators", type=names, default=list(ALLOCATORS))
    parser.add_argument("--rounds", type=int, default=1)
    add_limits(parser)
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "scale.json")
    parser.add_argument("--picture", type=Path, help="a PNG of the curves")
    arguments = parser.parse_args()
    try:
        rows = measure(arguments)
    except CompilationError as error:
        sys.exit(f"scale: {error}")
    if not any("curves" in row for row in rows):
        sys.exit("scale: no run succeeded; what failed is said above")
    print("\n" + scale_curves.render(rows))
    for steep in scale_curves.steep(rows):
        print(f"steep: {steep}")
    if arguments.picture:
        scale_curves.draw(rows, arguments.picture)
    print(f"results: {arguments.out}")


if __name__ == "__main__":
    main()
