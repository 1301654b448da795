"""Python imports this by itself at its start, where this folder is on PYTHONPATH (script.py).

It puts an allocator into torch at the moment when torch has been imported, in this process and in
those that it starts. The user's own sitecustomize, if there is one, runs as it would.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
ALIAS = "_gpumem_alloc_benchmarks"  # no name that a user's program has


def others() -> list[str]:
    """Return sys.path without this folder."""
    return [place for place in sys.path if Path(place or ".").resolve() != HERE]


def package() -> str:
    """Import the benchmarks as a package, whatever the program itself calls `benchmarks`."""
    if ALIAS not in sys.modules:
        folder = HERE.parent.parent
        spec: Any = importlib.util.spec_from_file_location(
            ALIAS, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[ALIAS] = module
        spec.loader.exec_module(module)
    return ALIAS


class WhenTorchIsImported(importlib.abc.MetaPathFinder):
    """Waits for the import of torch, and does what in_script.py says right after it."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings

    def find_spec(self, name: str, path: object, target: object = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_attach(module: ModuleType) -> None:
                execute(module)
                attach(module, self.settings)

            spec.loader.exec_module = execute_and_attach
        return spec


def attach(torch: ModuleType, settings: dict[str, str]) -> None:
    """Put the allocator in place; what fails here fails the program, not only the measurement."""
    if importlib.util.find_spec("gpumem_alloc") is None:
        sys.path.append(settings["folder"])
    in_script = importlib.import_module(f"{package()}.workers.in_script")
    in_script.attach(torch, settings["allocator"], Path(settings["records"]))


def run_the_users() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others())
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "GPUMEM_ALLOC_BENCH" in os.environ:
    sys.meta_path.insert(0, WhenTorchIsImported(json.loads(os.environ["GPUMEM_ALLOC_BENCH"])))
sys.path[:] = others()
run_the_users()
