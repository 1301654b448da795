"""Loads a bridge that is on disk."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from typing import Any

from gpumem_alloc.bridge import stamps
from gpumem_alloc.bridge.build import MODULE
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.obtain import Bridge

_NAME = f"gpumem_alloc.{MODULE}"
_AGAIN = "Build it anew: python -m gpumem_alloc bridge build --force."


def load(bridge: Bridge) -> Any:
    """Return the module; torch must be imported. Raises BridgeError.

    A binary of another torch is not loaded, not even to ask it: it would crash, since methods of
    PyTorch's class move from version to version.
    """
    wanted = bridge.made.facts.version
    stamp = stamps.read(bridge.module)
    built_for = stamp.torch if stamp else "an unknown version"
    if built_for != wanted:
        raise BridgeError(
            f"the bridge was built for torch {built_for}, and this is torch {wanted}.",
            f"It is {bridge.module}.",
            _AGAIN,
        )
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(bridge.module))
    spec = importlib.util.spec_from_file_location(_NAME, bridge.module, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise BridgeError(
            f"the bridge to torch {wanted} cannot be loaded.",
            f"{error}.",
            f"{_AGAIN} Where its folder may not hold programs, set GPUMEM_ALLOC_CACHE to another.",
        ) from None
    is_ours = str(module.SOURCE_ID) == bridge.made.source_id
    if not is_ours or module.TORCH_VERSION not in (wanted, bridge.made.facts.release):
        raise BridgeError(
            f"the bridge says it is of torch {module.TORCH_VERSION}, and this is torch {wanted}.",
            f"Its sources are {module.SOURCE_ID}; ours are {bridge.made.source_id}.",
            _AGAIN,
        )
    sys.modules[_NAME] = module
    return module
