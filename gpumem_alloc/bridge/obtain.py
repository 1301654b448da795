"""From an installed torch to a module on disk: the one that is there, or a new one."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpumem_alloc import _C
from gpumem_alloc.bridge import build, cache, toolchain
from gpumem_alloc.bridge.build import Recipe
from gpumem_alloc.bridge.cache import Entry
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.facts import TorchFacts, require_supported
from gpumem_alloc.bridge.toolchain import Toolchain

PACKAGE = Path(__file__).resolve().parent.parent
_SCRATCH = "scratch-"
_log = logging.getLogger("gpumem_alloc")


@dataclass(frozen=True)
class Bridge:
    """A module on disk and what it was made from."""

    module: Path
    made: Recipe

    @property
    def log(self) -> Path:
        """What the compiler said, where the module was built on this machine."""
        return Entry(self.module.parent).log


def say(line: str) -> None:
    """Tell the user, who waits, what is going on."""
    print(f"gpumem_alloc: {line}", file=sys.stderr, flush=True)


def recipe(facts: TorchFacts) -> Recipe:
    """Return what would be compiled for a torch. Raises BridgeError if none can be."""
    require_supported(facts)
    return build.recipe(facts, PACKAGE, _C.__version__)


def present(made: Recipe) -> tuple[Path | None, list[str]]:
    """Return the module that can be loaded, if there is one, and why others cannot."""
    name = cache.name(made, _C.__version__)
    faults: list[str] = []
    for entry in (cache.shipped(PACKAGE, name), *(Entry(f / name) for f in cache.folders())):
        fault = entry.fault(made)
        if fault is None:
            return entry.module, faults
        if fault != cache.ABSENT:
            faults.append(f"{entry.module} is {fault}")
    return None, faults


def obtain(
    facts: TorchFacts,
    *,
    force: bool = False,
    retry: bool = False,
    tell: Callable[[str], None] = say,
) -> Bridge:
    """Return the bridge to a torch, built now if need be; with `force`, built in any case.

    Raises BridgeError. A build that failed is tried again only with `retry`, or once compiler or
    headers are others, so that a program does not wait for it at every start.
    """
    made = recipe(facts)
    module, _ = present(made)
    if module is not None and not force:
        return Bridge(module, made)
    for other in cache.shipped_for(PACKAGE) - {facts.version}:
        tell(f"the installed bridge is for torch {other}, and this is torch {facts.version}")
    try:
        return build_in(cache.writable_folder(), made, force=force, retry=retry, tell=tell)
    except OSError as error:
        raise BridgeError(
            f"the bridge to torch {facts.version} could not be written.",
            f"{error}.",
            f"Set {cache.ENVIRONMENT} to a folder with room (a bridge is about 2 MB).",
        ) from None


def build_in(
    folder: Path,
    made: Recipe,
    *,
    force: bool = False,
    retry: bool = False,
    is_checked: bool = True,
    tell: Callable[[str], None] = say,
) -> Bridge:
    """Build into a folder of bridges, unless another process does so meanwhile."""
    entry = Entry(folder / cache.name(made, _C.__version__), is_checked)
    with cache.locked(folder / f"{entry.folder.name}.lock") as is_alone:
        fault = entry.fault(made)
        if fault is not None or force:
            tools = toolchain.find(made.facts)
            if not force and not retry:
                _refuse_after_failure(entry, tools)
            if fault not in (None, cache.ABSENT):
                tell(f"the bridge in {entry.folder} is {fault}; it is built anew")
            tell(f"building the bridge for torch {made.facts.version} (under a minute, once)")
            for left in entry.folder.glob(f"{_SCRATCH}*") if is_alone else ():  # by one that died
                shutil.rmtree(left, ignore_errors=True)
            _build(entry, made, tools)
    return Bridge(entry.module, made)


def _build(entry: Entry, made: Recipe, tools: Toolchain) -> None:
    entry.folder.mkdir(mode=0o755, exist_ok=True)
    if entry.is_checked:
        cache.refuse_if_others_write(entry.folder)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=entry.folder) as scratch:
        target = Path(scratch) / build.module_name()
        try:
            build.build(made, tools, target, entry.log)
        except BridgeError as error:
            if not error.may_pass:
                failure = {"tools": tools.identity, "error": [error.what, error.why, error.fix]}
                entry.failure.write_text(json.dumps(failure))
            raise
        details = {
            "torch": made.facts.version,
            "compiler": str(tools.compiler),
            "cuda_headers": tools.cuda.place,
        }
        entry.publish(target, details)
    _log.info("built %s", entry.module)


def _refuse_after_failure(entry: Entry, tools: Toolchain) -> None:
    error = recorded_failure(entry, tools)
    if error is not None:
        raise error


def recorded_failure(entry: Entry, tools: Toolchain) -> BridgeError | None:
    """Return why the last build with the same tools failed."""
    try:
        failure = json.loads(entry.failure.read_text())
        what, why, fix = map(str, failure["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return BridgeError(what, why, fix) if failure.get("tools") == tools.identity else None
