"""A GPU-memory allocator for PyTorch.

    import gpumem_alloc
    gpumem_alloc.enable()        # before the first CUDA tensor

Importing it starts nothing and needs neither torch nor a GPU.
"""

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
    "options",
    "reserve",
    "set_limit",
    "share_exclusively",
    "stats",
    "trim",
]

_watch.note_who_starts_cuda()
