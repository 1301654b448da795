"""Runs one program of this folder under one allocator and prints what it found, as JSON.

    python -m tests.programs.runner hf_training bridge
    python -m tests.programs.runner hf_training native
    python -m tests.programs.runner hf_training cpu       by hand, where there is no GPU

A program is a module with LIBRARIES (what it needs beside torch), the settings below where it
departs from them, and run(torch, device), which returns a dict of numbers, texts and lists. Both
allocators get the same seeds. What depends on time or on the machine must not be in the dict.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import random
from typing import Any

DOOR = "GMA_PROGRAM_DOOR"  # for the processes that a program starts
SEED = 7
# A program may set these.
DETERMINISTIC = True  # kernels that add in a fixed order
COUNTED = True  # requests to the allocator are a part of the result
REPEATS = True  # two runs with one allocator can be equal
TOLERANCE = 1e-3  # of a number, in parts, where native does not repeat itself


def setting(program: Any, name: str) -> Any:
    """Return a program's own setting, else the one above."""
    return getattr(program, name, globals()[name])


def load(name: str) -> Any:
    """Return the module of a program."""
    return importlib.import_module(f"tests.programs.{name}")


def prepare(torch: Any, allocator: str) -> None:
    """Put the allocator in place in this process, and say it to processes started from here."""
    os.environ[DOOR] = allocator
    if allocator in ("bridge", "stock"):
        import gpumem_alloc

        gpumem_alloc.enable(door=allocator)
    torch.manual_seed(SEED)
    random.seed(SEED)


def check(torch: Any, allocator: str) -> None:
    """Fail if ours did not serve, or found anything wrong."""
    if allocator not in ("bridge", "stock"):
        return
    import gpumem_alloc

    assert gpumem_alloc.is_enabled()
    torch.cuda.synchronize()
    gpumem_alloc.audit()
    assert gpumem_alloc.errors() == [], gpumem_alloc.errors()


def requests(torch: Any) -> dict[str, int]:
    """Return what the allocator was asked for since the start."""
    stats = torch.cuda.memory_stats()
    return {
        "requests": stats["allocation.all.allocated"],
        "requested_bytes": stats["requested_bytes.all.allocated"],
    }


def run(name: str, allocator: str) -> dict[str, Any]:
    """Run the program and return its result."""
    program = load(name)
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch

    prepare(torch, allocator)
    if setting(program, "DETERMINISTIC"):
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Filling would write to memory that was only just obtained, and hide what is in it.
        torch.utils.deterministic.fill_uninitialized_memory = False
    result: dict[str, Any] = program.run(torch, "cpu" if allocator == "cpu" else "cuda")
    if allocator != "cpu" and setting(program, "COUNTED"):
        result |= requests(torch)
    check(torch, allocator)
    return result


def is_finite(value: Any) -> bool:
    """Say whether every number in a result is one."""
    if isinstance(value, dict):
        return all(is_finite(each) for each in value.values())
    if isinstance(value, list):
        return all(is_finite(each) for each in value)
    return not isinstance(value, float) or math.isfinite(value)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("allocator", choices=("native", "stock", "bridge", "cpu"))
    arguments = parser.parse_args()
    result = run(arguments.program, arguments.allocator)
    assert is_finite(result), result
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
