"""What the mode replaces in Python's multiprocessing.

Every way a CPU tensor takes ends at the reducer of its storage in ForkingPickler's table, so that
one entry keeps the promise; the others make it cheap, or deal with what goes around the table. A
replaced function that somebody keeps does what the original did once the mode is left.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from multiprocessing import connection, process, queues
from multiprocessing.reduction import ForkingPickler
from typing import Any

from gpumem_alloc.workers import by_value, pipes
from gpumem_alloc.workers.patches import Patches

_PROTOCOL = 5
_CONFIG_KEY = "gpumem_alloc_no_sharing"
_drop_unpicklable: Any = queues.Queue._on_queue_feeder_error  # type: ignore[attr-defined]

IsActive = Callable[[], bool]


def install(patches: Patches, is_active: IsActive, in_child: type) -> None:
    """Replace; an `in_child` goes into the configuration of each process that is started."""
    table = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    for kind, reduce in _reducers(table).items():
        patches.entry(table, kind, reduce)
    patches.attribute(ForkingPickler, "dumps", _dumps(ForkingPickler.dumps, is_active))
    start = process.BaseProcess.start
    patches.attribute(process.BaseProcess, "start", _start(start, is_active, in_child))
    for kind in (queues.Queue, queues.JoinableQueue):
        patches.attribute(kind, "put", _put(kind.put, is_active))
    patches.attribute(connection.Connection, "_recv", pipes.receive)


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


def _dumps(original: Callable[..., Any], is_active: IsActive) -> Any:
    """Write protocol 5 if none is asked for: it copies large data once less."""

    def dumps(cls: Any, obj: Any, protocol: int | None = None) -> Any:
        if protocol is None and is_active():
            protocol = _PROTOCOL
        return original.__func__(cls, obj, protocol)  # type: ignore[attr-defined]

    return classmethod(dumps)


def _start(original: Callable[..., Any], is_active: IsActive, in_child: type) -> Any:
    """Tell the child in its configuration: that is unpickled when its modules can be found."""

    def start(self: Any) -> None:
        if is_active():
            self._config = {**self._config, _CONFIG_KEY: in_child()}
        original(self)

    return start


def _put(original: Callable[..., Any], is_active: IsActive) -> Any:
    def put(self: Any, obj: Any, *arguments: Any, **keywords: Any) -> None:
        # A queue that looks at its items when pickling fails has to find them as they are.
        looks = type(self)._on_queue_feeder_error is not _drop_unpicklable
        wrapped = obj if obj is None or looks or not is_active() else _Put(obj)
        original(self, wrapped, *arguments, **keywords)

    return put


class _Put:
    """What was put into a Queue inside the mode; its thread may pickle it after the end."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:  # not in the table any more
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
