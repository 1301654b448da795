"""The other process of tests/test_sharing.py: functions for torch.multiprocessing to start."""

from __future__ import annotations

import ctypes
import signal
from pathlib import Path
from typing import Any

import torch

import gpumem_alloc

_SECONDS = 110  # then a process that was forgotten ends
_PIDFD_GETFD = 438  # on every machine


def receive(inbox: Any, outbox: Any, door: str | None = "bridge", **options: Any) -> None:
    """Answer what comes with what it holds, until None comes; an error with its text.

    Two more answers tell that it was overwritten and that it was let go. The last answer is the
    number of open files, after the first item and now.
    """
    signal.alarm(_SECONDS)
    if door is not None:
        gpumem_alloc.enable(door=door, **options)
    counts: list[int] = []
    while _answer(inbox, outbox):
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    outbox.put([counts[0], counts[-1]])


def _answer(inbox: Any, outbox: Any) -> bool:
    try:
        item = inbox.get()
    except Exception as error:  # the test looks at its text
        outbox.put(f"{type(error).__name__}: {error}")
        return True
    if item is None:
        return False
    outbox.put([tensor.tolist() for tensor in item])  # CPU tensors would open files meanwhile
    with torch.no_grad():
        for tensor in item:
            tensor.copy_(torch.full(tensor.shape, 7, dtype=tensor.dtype))
    torch.cuda.synchronize()
    outbox.put("written")
    del item, tensor
    outbox.put("let go")
    return True


def send(outbox: Any, sizes: list[int], door: str | None = "bridge", **options: Any) -> None:
    """Send tensors of our own and live until the receiver answers."""
    signal.alarm(_SECONDS)
    if door is not None:
        gpumem_alloc.enable(door=door, **options)
    outbox.send([torch.arange(size).cuda() for size in sizes])
    outbox.recv()


def keep(inbox: Any, outbox: Any) -> None:
    """Receive once and end while holding what came."""
    signal.alarm(_SECONDS)
    gpumem_alloc.enable(door="bridge")
    globals()["kept"] = inbox.get()
    outbox.put("kept")


def look_at(_tensor: Any) -> None:
    """For a tensor that comes as an argument."""


def forbid_taking_descriptors() -> None:
    """From now on pidfd_getfd is refused, here and in children, as in a default container."""

    class Instruction(ctypes.Structure):
        _fields_ = (
            ("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8),
            ("value", ctypes.c_uint32),
        )  # fmt: skip

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_uint16), ("first", ctypes.POINTER(Instruction)))

    load, equal, answer = 0x20, 0x15, 0x06
    allow, eperm = 0x7FFF0000, 0x00050001
    steps = (Instruction * 4)(
        Instruction(load, 0, 0, 0),
        Instruction(equal, 0, 1, _PIDFD_GETFD),
        Instruction(answer, 0, 0, eperm),
        Instruction(answer, 0, 0, allow),
    )
    libc = ctypes.CDLL(None, use_errno=True)
    set_no_new_privileges, set_seccomp, with_filter = 38, 22, 2
    assert libc.prctl(set_no_new_privileges, 1, 0, 0, 0) == 0
    assert libc.prctl(set_seccomp, with_filter, ctypes.byref(Program(4, steps)), 0, 0) == 0


def elsewhere(inbox: Any, outbox: Any, device: int) -> None:
    """Copy what comes to a device of our own, say what it is there, and write to it from there."""
    signal.alarm(_SECONDS)
    gpumem_alloc.enable(door="bridge")
    torch.cuda.set_device(device)
    while (item := inbox.get()) is not None:
        copy = item.to(f"cuda:{device}")
        outbox.put((item.device.index, copy.device.index, int(copy.cpu().sum(dtype=torch.int64))))
        item.copy_(torch.full(item.shape, 8, dtype=item.dtype).to(copy.device))
        torch.cuda.synchronize(device)
        torch.cuda.synchronize(item.device)
        outbox.put("written")
        del item, copy
    gpumem_alloc.audit()
