"""What enable() would do on this machine, and what stands in the way of the bridge."""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.bridge import cache, cuda_places, facts, obtain, toolchain
from gpumem_alloc.bridge.build import Recipe
from gpumem_alloc.bridge.cache import Entry
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.facts import TorchFacts
from gpumem_alloc.bridge.wanted import ENVIRONMENT, wanted_door


def installed_torch() -> TorchFacts | None:
    """Import torch, if there is one, and return its facts."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    return facts.of_module(torch)


def collect(found: TorchFacts | None) -> dict[str, Any]:
    """Return everything as plain values; `fixes` holds what to do, empty if nothing is missing."""
    report: dict[str, Any] = {
        "version": _C.__version__,
        "cuda_kernels": _C.has_cuda_kernels(),
        "python": sysconfig.get_config_var("SOABI"),
        "torch": found.version if found else None,
        "cuda": found.cuda if found else None,
        "cxx11_abi": found.cxx11_abi if found else None,
        **dict.fromkeys(("source_id", "compiler", "cuda_headers", "python_headers", "folder")),
        "module": None,
        "unusable": [],
        "problems": [],
        "fixes": [],
    }
    if found is not None:
        _look(found, report)
    return {**report, **_outcome(report)}


def _look(found: TorchFacts, report: dict[str, Any]) -> None:
    def part(find: Callable[[], Any]) -> Any:
        try:
            return find()
        except BridgeError as error:
            report["problems"].append(f"{error.what} {error.why}")
            report["fixes"].append(error.fix)
            return None

    made = part(lambda: obtain.recipe(found))
    if made is None:
        return
    report["source_id"] = made.source_id
    report["compiler"] = part(lambda: str(toolchain.find_compiler()))
    report["cuda_headers"] = part(lambda: str(cuda_places.find(found)))
    report["python_headers"] = part(lambda: str(toolchain.find_python()[0]))
    report["folder"] = part(lambda: str(cache.writable_folder()))
    if not report["problems"]:
        part(lambda: _refuse_recorded(made, Path(report["folder"]), found))
    module, report["unusable"] = obtain.present(made)
    report["module"] = str(module) if module else None


def _refuse_recorded(made: Recipe, folder: Path, found: TorchFacts) -> None:
    """Raise the error of the last build, which enable() would raise again."""
    entry = Entry(folder / cache.name(made, _C.__version__))
    error = obtain.recorded_failure(entry, toolchain.find(found))
    if error is not None:
        raise error


def _outcome(report: dict[str, Any]) -> dict[str, str | None]:
    """Say which door enable() would take by itself, and how."""
    if report["torch"] is None:
        return {"door": None, "then": "need torch, which is not installed"}
    if wanted_door(None) == "stock":
        return {"door": "stock", "then": f"take the stock door, since {ENVIRONMENT}=stock"}
    if report["module"]:
        return {"door": "bridge", "then": "load the bridge that is there"}
    if not report["problems"]:
        return {"door": "bridge", "then": "compile the bridge (under a minute, once), then load it"}
    if wanted_door(None) == "bridge":
        return {"door": None, "then": f"raise an error, since {ENVIRONMENT}=bridge"}
    return {"door": "stock", "then": "take the stock door, with a warning"}
