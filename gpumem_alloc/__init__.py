"""A GPU-memory allocator for PyTorch.

    import gpumem_alloc
    gpumem_alloc.enable()        # before the first CUDA tensor

Importing it starts nothing and needs neither torch nor a GPU.
"""

from typing import TYPE_CHECKING, Any

from gpumem_alloc import watch as _watch
from gpumem_alloc._C import __version__
from gpumem_alloc.control import (
    audit,
    errors,
    reserve,
    set_limit,
    stats,
    trim,
)
from gpumem_alloc.door import allocator, enable, is_enabled
from gpumem_alloc.errors import AllocatorError, OptionError, TooLateError
from gpumem_alloc.options import Options, options
from gpumem_alloc.sharing import exclusive_pages, share_exclusively

if TYPE_CHECKING:
    from gpumem_alloc import isolation, workers
    from gpumem_alloc.isolation import isolated
    from gpumem_alloc.verify import verify_isolation

__all__ = [
    "AllocatorError",
    "OptionError",
    "Options",
    "TooLateError",
    "__version__",
    "allocator",
    "audit",
    "enable",
    "errors",
    "exclusive_pages",
    "is_enabled",
    "isolated",
    "isolation",
    "options",
    "reserve",
    "set_limit",
    "share_exclusively",
    "stats",
    "trim",
    "verify_isolation",
    "workers",
]


def __getattr__(name: str) -> Any:
    """Import `isolation` and `workers` at their first use, since few programs need them."""
    import importlib

    if name in ("isolation", "workers"):
        return importlib.import_module(f"gpumem_alloc.{name}")
    if name == "isolated":
        return importlib.import_module("gpumem_alloc.isolation").isolated
    if name == "verify_isolation":
        return importlib.import_module("gpumem_alloc.verify").verify_isolation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_watch.note_who_starts_cuda()
