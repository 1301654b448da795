"""The mode: what of multiprocessing and torch it replaces, and how child processes come to it.

Every way a CPU tensor takes ends at the reducer of its storage in ForkingPickler's table, so that
one entry keeps the promise; the others make it cheap, or deal with what goes around the table. A
replaced function that somebody keeps does what the original did once the mode is left.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from multiprocessing import connection, process, queues
from multiprocessing.reduction import ForkingPickler
from typing import Any

from gpumem_alloc.errors import AllocatorError
from gpumem_alloc.workers import by_value, pipes
from gpumem_alloc.workers.patches import Patches

_PROTOCOL = 5
_CONFIG_KEY = "gpumem_alloc_no_sharing"
_drop_unpicklable: Any = queues.Queue._on_queue_feeder_error  # type: ignore[attr-defined]

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
    import torch  # noqa: F401 - may take a second, so before the lock

    with _lock:
        if _depth == 0:
            try:
                _install()
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


class _Inherited:
    """Put into a process's configuration; the child that unpickles it is in the mode."""

    def __reduce__(self) -> Any:
        return _inherit, ()


_inherited: _Inherited | None = None


def _inherit() -> _Inherited:
    global _inherited
    if _inherited is None:
        _inherited = _Inherited()
        _enter()
    return _inherited


class _Put:
    """What was put into a Queue inside the mode; its thread may pickle it after the end."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return pickle.loads, (bytes(_ByValuePickler.dumps(self.value, _PROTOCOL)),)


def _reduce_put(put: _Put) -> Any:
    return _value, (put.value,)


def _value(value: Any) -> Any:
    return value


class _ByValuePickler(ForkingPickler):
    """Pickles by value whether the mode is on or not."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dispatch_table.update(_reducers(dict(self.dispatch_table)))


def _reducers(table: dict[Any, Any]) -> dict[Any, Any]:
    """The entries by value for those that `table` has from torch."""
    import torch

    tensors = [torch.Tensor, torch.nn.parameter.Parameter, *torch._tensor_classes]
    found: dict[Any, Any] = {
        kind: partial(by_value.reduce_tensor, previous=table[kind]) for kind in tensors
    }
    storage = torch.UntypedStorage
    found[storage] = partial(by_value.reduce_storage, previous=table[storage])
    return found | {_Put: _reduce_put}


def _install() -> None:
    import torch
    from torch.multiprocessing import reductions

    table = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reduce in _reducers(table).items():
        _patches.entry(table, kind, reduce)
    # torch's functions for sparse and nested tensors look it up in the module.
    _patches.attribute(reductions, "reduce_tensor", _part_reducer(reductions.reduce_tensor))
    _patches.attribute(ForkingPickler, "dumps", _dumps(ForkingPickler.dumps))
    _patches.attribute(process.BaseProcess, "start", _start(process.BaseProcess.start))
    for kind in (queues.Queue, queues.JoinableQueue):
        _patches.attribute(kind, "put", _put(kind.put))
    _patches.attribute(connection.Connection, "_recv", pipes.receive)
    _patches.attribute(connection.Connection, "_send", pipes.send)
    storage = torch.UntypedStorage
    _patches.attribute(storage, "_new_shared", _new_shared(storage._new_shared))
    _patches.attribute(storage, "share_memory_", _share_memory(storage.share_memory_))
    _install_in_data_loader()


def _part_reducer(original: Callable[..., Any]) -> Callable[..., Any]:
    def reduce_tensor(tensor: Any) -> Any:
        return by_value.reduce_tensor(tensor, original) if is_active() else original(tensor)

    return reduce_tensor


def _dumps(original: Callable[..., Any]) -> Any:
    """Write protocol 5 if none is asked for: it copies large data once less."""

    def dumps(cls: Any, obj: Any, protocol: int | None = None) -> Any:
        if protocol is None and is_active():
            protocol = _PROTOCOL
        return original.__func__(cls, obj, protocol)  # type: ignore[attr-defined]

    return classmethod(dumps)


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    """Tell a child of the mode in its configuration, which is pickled before its arguments."""

    def start(self: Any) -> None:
        if is_active():
            self._config = {**self._config, _CONFIG_KEY: _Inherited()}
        original(self)

    return start


def _put(original: Callable[..., Any]) -> Callable[..., Any]:
    def put(self: Any, obj: Any, *arguments: Any, **keywords: Any) -> None:
        # A queue that looks at its items when pickling fails has to find them as they are.
        looks = type(self)._on_queue_feeder_error is not _drop_unpicklable
        wrapped = obj if obj is None or looks or not is_active() else _Put(obj)
        original(self, wrapped, *arguments, **keywords)

    return put


def _new_shared(original: Callable[..., Any]) -> Any:
    """Let default_collate() in a worker stack into memory of its own."""

    def new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        return cls(size, device=device) if is_active() else original(size, device=device)

    return classmethod(new_shared)


def _share_memory(original: Callable[..., Any]) -> Callable[..., Any]:
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


def _install_in_data_loader() -> None:
    """Let a DataLoader notice that a worker was killed while it wrote a large batch."""
    from torch.utils.data import _utils, dataloader

    loop, kind = _utils.pin_memory._pin_memory_loop, dataloader._MultiProcessingDataLoaderIter
    start = kind.__init__

    def pin_memory_loop(
        in_queue: Any, out_queue: Any, device_id: Any, done: Any, *more: Any
    ) -> None:
        pipes.give_up_when(in_queue._reader, done.is_set)
        loop(in_queue, out_queue, device_id, done, *more)

    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        start(self, *arguments, **keywords)
        if not self._pin_memory:
            pipes.give_up_when(
                self._worker_result_queue._reader, partial(_any_killed, self._workers)
            )

    _patches.attribute(_utils.pin_memory, "_pin_memory_loop", pin_memory_loop)
    _patches.attribute(kind, "__init__", init)


def _any_killed(workers: list[Any]) -> bool:
    return any(worker.exitcode not in (None, 0) for worker in workers)
