"""NCCL and memory that moves: PyTorch can have NCCL register all memory that it serves.

It registers what is there when a communicator is made, and later segments as they come; it is not
told of single pages that move. A collective would go on using the pages that were there. So with
memory that moves the setting is taken back, as PyTorch does with its expandable segments. Pools
that are registered on purpose (ProcessGroupNCCL.register_mem_pool) are fine: their pages stay.
"""

from __future__ import annotations

import os
import warnings

from gpumem_alloc import _C, watch

SETTINGS = (
    "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
    "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
)
_OFF = ("", "0", "false", "no", "n")


def keep_registration_off() -> None:
    """Take the setting back where memory moves, with one warning."""
    strategy = _C.options_in_force()["strategy"]
    if strategy in ("split", "direct"):
        return  # whole segments, which PyTorch is told of
    for name in SETTINGS:
        if os.environ.get(name, "").lower() in _OFF:
            continue
        del os.environ[name]
        warnings.warn_explicit(
            f"gpumem_alloc: {name} is taken back: pages move under strategy `{strategy}`, and NCCL "
            "would keep the old ones. Register a MemPool, whose pages stay, or use "
            'enable(strategy="split").',
            RuntimeWarning,
            *watch.user_place(),
        )
