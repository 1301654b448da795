"""Reading large messages from the pipes of multiprocessing.

Connection asks the system for all that is missing at each read, and gets what a pipe holds: for
64 MiB in 1.5 times the time. And who reads a message whose writer was killed would wait for ever,
as the pipe stays open in other processes.
"""

from __future__ import annotations

import os
import queue
import select
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

PIPE_BYTES = 1 << 16  # what a pipe holds on Linux
STALL_SECONDS = 2.0

_receive_plainly = Connection._recv  # type: ignore[attr-defined]


def receive(connection: Any, size: int, read: Callable[[int, int], bytes] = os.read) -> Any:
    """Read like Connection._recv, in pieces of what a pipe holds."""
    return _receive_plainly(
        connection, size, lambda handle, count: read(handle, min(count, PIPE_BYTES))
    )


def give_up_when(inbox: Any, is_hopeless: Callable[[], bool]) -> None:
    """Let reads of a queue raise queue.Empty if nothing comes for a while and it is hopeless."""
    reader = getattr(inbox, "_reader", None)
    connection: Any = getattr(reader, "conn", reader)  # torch wraps some of them
    if not isinstance(connection, Connection):
        return  # a queue of somebody else's
    reading = partial(receive, connection, read=partial(_read_or_give_up, is_hopeless))
    setattr(connection, "_recv", reading)  # noqa: B010 - typeshed does not know it


def _read_or_give_up(is_hopeless: Callable[[], bool], handle: int, count: int) -> bytes:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while not poll.poll(STALL_SECONDS * 1e3):
        if is_hopeless():
            raise queue.Empty
    return os.read(handle, count)
