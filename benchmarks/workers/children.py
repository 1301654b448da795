"""How one module of this package starts another one in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Not the current folder first: it may have a folder of this package's name. Before 3.11 no option.
_SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of the benchmarks, such as "workers.ballast"."""
    benchmarks = __package__.rpartition(".")[0]
    return [sys.executable, *_SAFE_PATH, "-m", f"{benchmarks}.{module}", *arguments]


def import_path() -> str:
    """Return a PYTHONPATH with which a child imports what this process can."""
    places = [str(Path(place).absolute()) for place in sys.path]  # "" is the current folder
    return os.pathsep.join(dict.fromkeys(places))
