"""Fills the card with plain allocations, so that a stated number of bytes stays free on it.

    with Ballast() as ballast:
        ballast.leave(24 << 30)
        ...
        ballast.leave(40 << 30)

A process of its own holds the memory (cuMemAlloc, which is what cudaMalloc calls) until its stdin
closes, so it cannot outlive its parent. What counts is what the driver says is free on the whole
card once the ballast's own context is there; memory of other processes is therefore in the account.
What stays free is never more than was asked for, and less than 2 MiB less (8 MiB where the driver
takes memory of its own in larger steps).
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Protocol

from .children import command
from .process import child_environment

PAGE_BYTES = 2 << 20  # the card's unit: smaller steps change nothing
PIECE_BYTES = 1 << 30  # what is given back at a time is not much more than what is wanted
COARSE_BYTES = 4 * PAGE_BYTES
ROUNDS = 16  # of taking or giving back and asking again
FINE_ROUNDS = 8  # after these a distance of COARSE_BYTES will do
SETTLE_SECONDS = 0.02  # a process that has just ended may still be giving memory back
SETTLE_READINGS = 100
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class BallastError(RuntimeError):
    """The card cannot be filled as asked."""


@dataclass(frozen=True)
class Left:
    """What the driver says after filling: bytes free on the card, and held by the ballast."""

    free_bytes: int
    held_bytes: int


class Driver(Protocol):
    """The calls that filling a card needs."""

    def free_bytes(self) -> int:
        """Return what is free on the card."""

    def take(self, size_bytes: int) -> int | None:
        """Allocate; returns the address, or None where the card has not so much."""

    def give_back(self, address: int) -> None:
        """Free."""


class CudaDriver:
    """The driver of one card, in its primary context."""

    def __init__(self, device: int) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments: object) -> None:
        if (result := getattr(self._library, name)(*arguments)) != 0:
            raise OSError(result, f"{name} failed with {result}")

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def take(self, size_bytes: int) -> int | None:
        address = ctypes.c_uint64()
        try:
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        except OSError as error:
            if error.errno != OUT_OF_MEMORY:
                raise
            return None
        return address.value

    def give_back(self, address: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(address))


class Filler:
    """The pieces held, and the arithmetic; `pause` waits between two readings."""

    def __init__(self, driver: Driver, pause: Callable[[float], None] = time.sleep) -> None:
        self._driver = driver
        self._pause = pause
        self._pieces: list[tuple[int, int]] = []  # address, bytes: multiples of a page

    @property
    def held_bytes(self) -> int:
        """What the pieces add up to."""
        return sum(size_bytes for _, size_bytes in self._pieces)

    def leave(self, wanted_bytes: int) -> Left:
        """Take or give back until `wanted_bytes` or a little less are free."""
        free_bytes = self._settled_bytes()
        for count in range(ROUNDS):
            surplus_bytes = free_bytes - wanted_bytes
            near_bytes = PAGE_BYTES if count < FINE_ROUNDS else COARSE_BYTES
            if -near_bytes < surplus_bytes <= 0:
                return Left(free_bytes, self.held_bytes)
            if surplus_bytes > 0:
                self._take(-(-surplus_bytes // PAGE_BYTES) * PAGE_BYTES)
            elif self._pieces:
                self._give_back(-surplus_bytes // PAGE_BYTES * PAGE_BYTES)
            else:
                raise BallastError(too_little(wanted_bytes, free_bytes))
            free_bytes = self._driver.free_bytes()
        raise BallastError(unsteady(wanted_bytes, free_bytes))

    def _settled_bytes(self) -> int:
        free_bytes = self._driver.free_bytes()
        for _ in range(SETTLE_READINGS):
            self._pause(SETTLE_SECONDS)
            last, free_bytes = free_bytes, self._driver.free_bytes()
            if free_bytes == last:
                break
        return free_bytes

    def _take(self, size_bytes: int) -> None:
        piece_bytes = PIECE_BYTES
        while size_bytes >= PAGE_BYTES and piece_bytes >= PAGE_BYTES:
            piece_bytes = min(piece_bytes, size_bytes)
            address = self._driver.take(piece_bytes)
            if address is None:
                piece_bytes = piece_bytes // 2 // PAGE_BYTES * PAGE_BYTES
            else:
                self._pieces.append((address, piece_bytes))
                size_bytes -= piece_bytes

    def _give_back(self, size_bytes: int) -> None:
        """Free the last pieces until that much is free; leave() takes again what is too much."""
        while size_bytes > 0 and self._pieces:
            address, piece_bytes = self._pieces.pop()
            self._driver.give_back(address)
            size_bytes -= piece_bytes


def gib(size_bytes: int) -> str:
    """Return a size as text."""
    return f"{size_bytes / (1 << 30):.2f} GiB"


def too_little(wanted_bytes: int, free_bytes: int) -> str:
    """Return the error for a card that has not so much to leave, with nothing held."""
    return (
        f"ballast: {gib(wanted_bytes)} cannot be left free.\n"
        f"With no ballast at all {gib(free_bytes)} are free on this card; others hold the rest.\n"
        "End them (nvidia-smi shows which), or ask for less."
    )


def unsteady(wanted_bytes: int, free_bytes: int) -> str:
    """Return the error for a card on which taking and giving back does not lead there."""
    return (
        f"ballast: {gib(wanted_bytes)} could not be left free; {gib(free_bytes)} are.\n"
        "What is free on the card keeps changing, so another process is using it.\n"
        "End it (nvidia-smi shows which), and try again."
    )


class Ballast:
    """The process that holds the memory, from entry to exit."""

    def __init__(self, device: int = 0) -> None:
        self._device = device

    def __enter__(self) -> Ballast:
        self._child = subprocess.Popen(
            command("workers.ballast", str(self._device)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=child_environment("native"),
        )  # fmt: skip
        try:
            self._answer()
        except BallastError:
            self._end()
            raise
        return self

    def leave(self, free_bytes: int) -> Left:
        """Let that many bytes be free on the card now; raises BallastError."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(f"{free_bytes}\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: _answer says so
        return self._answer()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _answer(self) -> Left:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise BallastError(answer["error"])
        return Left(**answer)

    def _last_words(self) -> str:
        assert self._child.stderr is not None
        said = self._child.stderr.read().strip().splitlines()
        return (
            "ballast: the process that holds the memory has ended.\n"
            f"It said: {said[-1] if said else 'nothing'}\n"
            "Without it nothing limits the card; start again."
        )

    def _end(self) -> None:
        try:
            self._child.communicate(timeout=60)  # closes its stdin, which ends it
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._child.kill()
            self._child.wait()


def serve(filler: Filler) -> None:
    """Answer each line of stdin, a number of bytes to leave, until stdin ends."""
    print(json.dumps(asdict(Left(0, 0))), flush=True)  # ready
    for line in sys.stdin:
        try:
            answer: dict[str, object] = asdict(filler.leave(int(line)))
        except BallastError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def main() -> None:
    """See the module's text."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to let go
    try:
        driver = CudaDriver(int(sys.argv[1]))
    except OSError as error:
        print(json.dumps({"error": no_driver(error)}), flush=True)
        return
    serve(Filler(driver))


def no_driver(error: OSError) -> str:
    """Return the error for a machine whose card cannot be filled."""
    return (
        f"ballast: no memory of GPU {sys.argv[1]} can be held: {error}.\n"
        "It is held through the NVIDIA driver (libcuda.so.1), which is missing or refuses.\n"
        "Run on a machine with such a GPU, or measure without a limit."
    )


if __name__ == "__main__":
    main()
