"""What the mode replaces in torch: ways into shared memory that do not begin with a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpumem_alloc.errors import AllocatorError
from gpumem_alloc.workers import by_value
from gpumem_alloc.workers.patches import Patches

IsActive = Callable[[], bool]


def install(patches: Patches, is_active: IsActive) -> None:
    """Replace the reducer of parts, and what makes or moves storages in shared memory."""
    import torch
    from torch.multiprocessing import reductions

    # torch's functions for sparse and nested tensors look it up in the module.
    reducer = _part_reducer(reductions.reduce_tensor, is_active)
    patches.attribute(reductions, "reduce_tensor", reducer)
    storage = torch.UntypedStorage
    patches.attribute(storage, "_new_shared", _new_shared(storage._new_shared, is_active))
    patches.attribute(storage, "share_memory_", _share_memory(storage.share_memory_, is_active))


def _part_reducer(original: Callable[..., Any], is_active: IsActive) -> Any:
    def reduce_tensor(tensor: Any) -> Any:
        return by_value.reduce_tensor(tensor, original) if is_active() else original(tensor)

    return reduce_tensor


def _new_shared(original: Callable[..., Any], is_active: IsActive) -> Any:
    """Let default_collate() in a worker stack into memory of its own."""

    def new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        return cls(size, device=device) if is_active() else original(size, device=device)

    return classmethod(new_shared)


def _share_memory(original: Callable[..., Any], is_active: IsActive) -> Any:
    def share_memory(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if is_active() and self.device.type == "cpu" and not self.is_shared():
            raise AllocatorError(
                "share_memory_() was called inside gpumem_alloc.workers.no_sharing().\n"
                "It would move the tensor into shared memory, which the mode rules out.\n"
                "Call it before the mode is entered, or leave it out: what is sent is copied.",
                "not_supported",
            )
        return original(self, *arguments, **keywords)

    return share_memory
