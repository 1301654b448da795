"""`python -m gpumem_alloc bench`: hands its arguments to the package `benchmarks`.

An installed package has it inside, as gpumem_alloc.benchmarks; a checkout beside it, as a folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import gpumem_alloc

INSTALLED = "gpumem_alloc.benchmarks"
CHECKOUT = "benchmarks"


def package() -> str:
    """Return the package's name; it can be imported under it afterwards."""
    if importlib.util.find_spec(INSTALLED) is not None:
        return INSTALLED
    # A folder of that name may be anywhere on the path, so ours goes first.
    checkout = Path(gpumem_alloc.__file__).resolve().parent.parent
    if not (checkout / CHECKOUT / "cli.py").is_file():
        raise SystemExit(
            "gpumem_alloc: the benchmarks are not installed.\n"
            "They were left out when this package was built.\n"
            "Install it anew: python -m pip install --force-reinstall gpumem_alloc"
        )
    sys.path.insert(0, str(checkout))
    return CHECKOUT


def run(arguments: list[str], program: str) -> int:
    """Run the command and return its exit code."""
    cli: Any = importlib.import_module(f"{package()}.cli")
    return int(cli.main(arguments, program))
