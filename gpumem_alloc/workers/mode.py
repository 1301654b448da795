"""The mode: who is in it, and how child processes come to it."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from typing import Any

from gpumem_alloc.workers import in_loader, in_multiprocessing, in_torch
from gpumem_alloc.workers.patches import Patches

_lock = threading.RLock()
_depth = 0
_patches = Patches()

# A child must not find the lock held by a thread that it does not have.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)


def no_sharing() -> AbstractContextManager[None]:
    """Let CPU tensors travel by value between processes while inside.

    It holds for the whole process, all threads, from the first that enters until the last has left,
    and for processes started inside (fork, spawn, forkserver) and theirs until they end. A process
    started before keeps sharing what it sends. share_memory_() raises AllocatorError inside.
    """
    return _NoSharing()


def is_active() -> bool:
    """Return whether this process sends CPU tensors by value now."""
    return _depth > 0


class _NoSharing:
    def __enter__(self) -> None:
        _enter()

    def __exit__(self, *_: object) -> None:
        _leave()


def _enter() -> None:
    global _depth
    # Not under the lock: an import may take a second, and who forks while importing takes the lock.
    import torch.multiprocessing.reductions
    import torch.utils.data.dataloader  # noqa: F401

    with _lock:
        if _depth == 0:
            try:
                in_multiprocessing.install(_patches, is_active, _InChild)
                in_torch.install(_patches, is_active)
                in_loader.install(_patches)
            except BaseException:
                _patches.undo()
                raise
        _depth += 1


def _leave() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            _patches.undo()


class _InChild:
    """Put into a process's configuration; the child that unpickles it is in the mode."""

    def __reduce__(self) -> Any:
        return _begin_in_child, ()


_began_in_child = False


def _begin_in_child() -> _InChild:
    global _began_in_child
    if not _began_in_child:
        _began_in_child = True
        _enter()
    return _InChild()
