"""Builds the bridge into an installed package: `python -m gpumem_alloc.bridge.prebuild`.

setup.py calls it when a CUDA torch can be imported where the package is built. Whatever goes wrong
is one line, and the first enable() tries again.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from gpumem_alloc.bridge import facts, obtain
from gpumem_alloc.bridge.errors import BridgeError


def main() -> int:
    """Return 0 also when there is nothing to do."""
    if importlib.util.find_spec("torch") is None:
        return 0
    folder = Path(obtain.PACKAGE) / "bridge" / "built"
    try:
        import torch

        found = facts.of_module(torch)
        if found.cuda is None:
            return 0
        folder.mkdir(exist_ok=True)
        bridge = obtain.build_in(folder, obtain.recipe(found), is_checked=False)
    except BridgeError as error:
        shutil.rmtree(folder, ignore_errors=True)
        obtain.say(f"the bridge was not built now. {error.line}")
        return 1
    for path in (*folder.glob("*.lock"), *folder.glob("*/build.log")):  # nothing to install
        path.unlink()
    obtain.say(f"built {bridge.module.name} for torch {found.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
