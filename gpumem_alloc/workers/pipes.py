"""Large messages through the pipes of multiprocessing.

Two costs of the standard code show from a megabyte on: it asks for all that is missing at each
read, and a pipe holds 64 KiB. And one hang: who reads a message whose writer was killed waits for
ever, as the pipe stays open in the other processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

LARGE_BYTES = 1 << 16  # a pipe's size on Linux; what is larger fills it
WIDE_BYTES = 1 << 20  # the most that a user may ask for by default
STALL_SECONDS = 2.0
_SET_PIPE_SIZE = fcntl.F_SETPIPE_SZ
_WIDE = "_gpumem_alloc_is_wide"

_receive_plainly = Connection._recv  # type: ignore[attr-defined]
_send_plainly = Connection._send  # type: ignore[attr-defined]


def receive(connection: Any, size: int, read: Callable[[int, int], bytes] = os.read) -> Any:
    """Read like Connection._recv, in pieces of bounded size."""
    return _receive_plainly(
        connection, size, lambda handle, count: read(handle, min(count, WIDE_BYTES))
    )


def send(connection: Any, data: Any, write: Callable[[int, Any], int] = os.write) -> None:
    """Write like Connection._send; a pipe is made wide at its first large message."""
    if len(data) > LARGE_BYTES and not hasattr(connection, _WIDE):
        setattr(connection, _WIDE, True)
        with contextlib.suppress(OSError):  # a socket, or the user has too many wide pipes
            fcntl.fcntl(connection.fileno(), _SET_PIPE_SIZE, WIDE_BYTES)
    _send_plainly(connection, data, write)


def give_up_when(connection: Any, is_hopeless: Callable[[], bool]) -> None:
    """Let reads of this end raise queue.Empty if nothing comes for a while and it is hopeless."""
    connection = getattr(connection, "conn", connection)  # torch wraps some of them
    connection._recv = partial(receive, connection, read=partial(_read_or_give_up, is_hopeless))


def _read_or_give_up(is_hopeless: Callable[[], bool], handle: int, count: int) -> bytes:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while not poll.poll(STALL_SECONDS * 1e3):
        if is_hopeless():
            raise queue.Empty
    return os.read(handle, count)
