"""What the mode replaces in DataLoader: who reads a batch notices when its worker was killed.

By value a batch is larger than a pipe, so that a killed worker can leave half of one behind.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gpumem_alloc.workers import pipes
from gpumem_alloc.workers.patches import Patches


def install(patches: Patches) -> None:
    """Let both readers give up: the thread that pins when told to end, else who iterates."""
    from torch.utils.data import _utils, dataloader

    kind = dataloader._MultiProcessingDataLoaderIter
    loop, start = _utils.pin_memory._pin_memory_loop, kind.__init__

    def pin_memory_loop(inbox: Any, outbox: Any, device: Any, done: Any, *more: Any) -> None:
        pipes.give_up_when(inbox, done.is_set)
        loop(inbox, outbox, device, done, *more)

    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        start(self, *arguments, **keywords)
        if not self._pin_memory:
            inbox = self._worker_result_queue
            pipes.give_up_when(inbox, partial(_any_killed, self._workers))

    patches.attribute(_utils.pin_memory, "_pin_memory_loop", pin_memory_loop)
    patches.attribute(kind, "__init__", init)


def _any_killed(workers: list[Any]) -> bool:
    return any(worker.exitcode not in (None, 0) for worker in workers)
