"""What processes hold and tell when CPU tensors go between them; tests/test_workers.py asks.

    python -m tests.worker_program fork|spawn|forkserver   # one line of JSON

Each thing is done inside no_sharing() and, where that is quick, without it.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from gpumem_alloc import workers
from gpumem_alloc.workers import pipes

ITEMS, BATCH, NUMBERS = 12, 2, 1000
LARGE = 1 << 22  # numbers of a message that no pipe holds
Found = dict[str, Any]


class Kind(torch.Tensor):  # type: ignore[misc]
    """A subclass that can be pickled."""


def shared_mappings() -> int:
    """Mappings of files in /dev/shm, but for multiprocessing's semaphores."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("/dev/shm/" in line and "/dev/shm/sem." not in line for line in lines)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def files_of(pids: list[int]) -> list[str]:
    """Files in /dev/shm that torch made in these processes."""
    names = tuple(f"torch_{pid}_" for pid in pids)
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(names)]


class Numbers(Dataset[Any]):  # type: ignore[misc]
    """Each item tells what its worker holds."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        held = os.getpid(), shared_mappings(), descriptors()
        return torch.full((NUMBERS,), float(index)), *held


def epoch(loader: Any) -> Found:
    """Run an epoch, keep its batches, and tell what that left here and in the workers."""
    held = [shared_mappings(), descriptors()]
    batches = list(loader)
    gc.collect()
    if not loader.persistent_workers:
        wait_for_queues()
    return {
        "mappings": shared_mappings() - held[0],
        "descriptors": descriptors() - held[1],
        "worker_mappings": max(int(batch[2].max()) for batch in batches),
        "worker_descriptors": growth(batches),
        "is_shared": any(batch[0].is_shared() for batch in batches),
        "files": files_of([os.getpid(), *{int(batch[1][0]) for batch in batches}]),
        "values": [batch[0].mean(1).tolist() for batch in batches],
    }


def wait_for_queues() -> None:
    """A queue's thread closes its pipe when it ends."""
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(10)


def growth(batches: list[Any]) -> int:
    """Descriptors that a worker gained between its first batch and its last, the most of any."""
    held: dict[int, list[int]] = {}
    for _, pids, _, numbers in batches:
        held.setdefault(int(pids[0]), []).extend(numbers.tolist())
    return max(max(each) - each[0] for each in held.values())


_kept: list[Any] = []


def collate(items: list[Any]) -> Any:
    """Make a batch as usual; the worker keeps it, so that what it is in can be seen."""
    _kept.append(default_collate(items))
    return _kept[-1]


def loader(method: str, **options: Any) -> Any:
    options = {"num_workers": 1, "multiprocessing_context": method} | options
    return DataLoader(Numbers(), BATCH, collate_fn=collate, **options)


def answer(tensor: Any) -> tuple[Any, bool, int]:
    """What a child says: a tensor of its own, whether it is in the mode, what it maps."""
    return tensor + 1, workers.is_active(), shared_mappings()


def grandchild(outbox: Any) -> None:
    outbox.put(workers.is_active())


def serve(method: str, inbox: Any, outbox: Any, simple: Any, back: Any, pipe: Any) -> None:
    outbox.put(answer(inbox.get()))
    back.put(answer(simple.get()))
    pipe.send(answer(pipe.recv()))
    if method != "spawn":  # a third import of torch in a row takes too long
        context = torch.multiprocessing.get_context(method)
        process = context.Process(target=grandchild, args=(outbox,))
        process.start()
        process.join()
    outbox.close()
    outbox.join_thread()


def exchanges(method: str) -> dict[str, Found]:
    """Send a large tensor every way there is; tell what became of it and of the answer."""
    context = torch.multiprocessing.get_context(method)
    inbox, outbox, simple, back = [
        getattr(context, kind)() for kind in ("Queue", "Queue", "SimpleQueue", "SimpleQueue")
    ]
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(method, inbox, outbox, simple, back, there))
    child.start()
    found = {
        "Queue": exchange(inbox.put, outbox.get),
        "SimpleQueue": exchange(simple.put, back.get),
        "Pipe": exchange(here.send, here.recv),
    }
    if method != "spawn":
        found["grandchild"] = {"in_mode": outbox.get()}
        with context.Pool(1) as pool:
            found["Pool"] = exchange(lambda tensor: None, lambda: None, pool.apply)
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            found["Executor"] = exchange(
                lambda tensor: None, lambda: None, lambda f, a: executor.submit(f, *a).result()
            )
    child.join()
    return found


def exchange(send: Any, receive: Any, call: Any = None) -> Found:
    tensor = torch.arange(float(LARGE))
    address = tensor.data_ptr()
    if call is None:
        send(tensor)
    came, in_mode, mappings = receive() if call is None else call(answer, (tensor,))
    return {
        "equal": bool(torch.equal(came, tensor + 1)),
        "moved": tensor.data_ptr() != address or tensor.is_shared() or came.is_shared(),
        "in_mode": in_mode,
        "mappings": mappings + shared_mappings(),
    }


def all_of(method: str) -> Found:
    """All of the above under one start method."""
    torch.multiprocessing.set_forkserver_preload(["torch.multiprocessing", __spec__.name])
    if method == "forkserver":
        forkserver.ensure_running()
    resource_tracker.ensure_running()
    with workers.no_sharing():
        found = {"by_value": epoch(loader(method)), "exchanges": exchanges(method)}
    found["shared"] = epoch(loader(method))
    if method == "fork":
        found["others"] = others()
    return found


def others() -> Found:
    options: Found = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    with workers.no_sharing():
        lasting = loader("fork", **options)
        found: Found = {"persistent": epoch(lasting)}
    found["persistent_after"] = epoch(lasting)
    del lasting
    torch.multiprocessing.set_sharing_strategy("file_system")
    with workers.no_sharing():
        found["file_system"] = epoch(loader("fork"))
    found["file_system_shared"] = epoch(loader("fork"))
    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    return found | killed()


class Killed(Dataset[Any]):  # type: ignore[misc]
    """The worker is killed while it writes its first item."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        if index == 1:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(LARGE)


def iterate_killed() -> str:
    """Iterate in a thread that no signal wakes; return the error, empty if it hangs."""
    errors: list[str] = []

    def iterate() -> None:
        try:
            iterator: Any = iter(DataLoader(Killed(), 1, num_workers=1))
            iterator._workers[0].join()
            next(iterator)
        except BaseException as error:
            errors.append(str(error))

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    thread.join(10)
    return errors[0] if errors else ""


def put_and_wait(outbox: Any) -> None:
    outbox.put(torch.zeros(LARGE))
    time.sleep(60)


def pin_loop_ends() -> bool:
    """Say whether the thread that pins ends although a message that it reads never does."""
    inbox: Any = torch.multiprocessing.Queue()
    child = torch.multiprocessing.Process(target=put_and_wait, args=(inbox,))
    child.start()
    inbox._reader.poll(None)
    time.sleep(0.3)
    child.kill()
    child.join()
    torch.accelerator.set_device_index = lambda device: None
    done = threading.Event()
    loop = torch.utils.data._utils.pin_memory._pin_memory_loop
    arguments: Any = (inbox, queue.Queue(), 0, done, None)
    thread = threading.Thread(target=loop, args=arguments, daemon=True)
    thread.start()
    time.sleep(0.3)
    done.set()
    thread.join(1)
    return not thread.is_alive()


def killed() -> Found:
    pipes.STALL_SECONDS = 0.2
    with workers.no_sharing():
        found: Found = {"iterated": iterate_killed(), "pin_loop_ends": pin_loop_ends()}
    pipes.give_up_when = lambda *_: None
    with workers.no_sharing():
        found["pin_loop_ends_unwatched"] = pin_loop_ends()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)  # GNU's OpenMP does not survive a fork
    print(json.dumps(all_of(sys.argv[1])), flush=True)
    os._exit(0)  # a thread that hangs is among what is shown
