"""What the attacks are made on: the driver on the CPU, or a card under PyTorch.

Both sides of the comparison come from here: `native` is PyTorch's own allocator on a card, and
`strategy:split`, its policy, on the CPU; `ours` has the options that are asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from gpumem_alloc import _C
from gpumem_alloc.options import resolve

Side = Literal["native", "ours"]
Stream = Literal["main", "side", "other"]
STREAMS: tuple[Stream, ...] = ("main", "side", "other")

PIECE_BYTES = 4096  # of a tensor, that are written and looked at
LIMIT_PAGES = 64


class RefusedError(Exception):
    """A call was refused; the text says how."""


class NoMemoryError(Exception):
    """An allocation failed for want of memory."""


class Access(Protocol):
    """A kernel that touches memory, launched."""

    def wait(self) -> str:
        """Return "done" or "fault" when it is."""

    @property
    def data(self) -> bytes:
        """What it has read."""


class Machine(ABC):
    """Memory to attack, on device 0 unless said otherwise."""

    page_bytes: int
    own_bytes: int  # that the driver may take for itself meanwhile: page tables

    @abstractmethod
    def allocate(self, bytes: int, stream: Stream = "main") -> int:
        """Return an address, or raise NoMemoryError."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free; RefusedError if that was refused."""

    @abstractmethod
    def poke(
        self, address: int, bytes: int, value: int, stream: Stream = "main", *, late: bool = False
    ) -> Access:
        """Launch a kernel that sets bytes, on request one that takes its time first."""

    @abstractmethod
    def peek(self, address: int, bytes: int, stream: Stream = "main") -> Access:
        """Launch a kernel that reads."""

    @abstractmethod
    def settle(self) -> None:
        """Wait for everything."""

    @abstractmethod
    def trim(self) -> None:
        """Give the driver what no tensor uses."""

    @abstractmethod
    def findings(self) -> list[str]:
        """Return what the allocator has found, after a look at everything."""

    @abstractmethod
    def witness(self, address: int) -> int:
        """Map the physical memory of an address a second time; RefusedError if it has no handle."""

    @abstractmethod
    def export_descriptor(self, address: int) -> str:
        """Say what another process could map the memory by; RefusedError if nothing."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Return what the process holds of the card for tensors, as the card counts."""

    def fill(self, address: int, bytes: int, value: int, stream: Stream = "main") -> None:
        """Set bytes, and wait."""
        if self.poke(address, bytes, value, stream).wait() == "fault":
            raise RuntimeError("a write to memory that is allocated faulted")

    def read(self, address: int, bytes: int, stream: Stream = "main") -> bytes:
        """Read bytes."""
        access = self.peek(address, bytes, stream)
        if access.wait() == "fault":
            raise RuntimeError("a read of memory that is allocated faulted")
        return access.data


class HostMachine(Machine):
    """The driver on the CPU: streams do their work only when somebody waits for it."""

    page_bytes = 512 << 10
    own_bytes = 0

    def __init__(self, side: Side, options: Mapping[str, object], limited: bool) -> None:
        limit_mb = LIMIT_PAGES * self.page_bytes >> 20
        limit: dict[str, object] = {"limit_mb": limit_mb} if limited else {}
        if side == "native":
            text = ",".join(f"{key}:{value}" for key, value in limit.items())
            text = f"strategy:split,{text}".rstrip(",")
        else:
            text = resolve({**options, **limit})
        self._made = _C.HostMachine(
            text,
            device_count=2,
            capacity_bytes=4 * LIMIT_PAGES * self.page_bytes,
            page_bytes=self.page_bytes,
        )

    def allocate(self, bytes: int, stream: Stream = "main") -> int:
        """See Machine."""
        try:
            return self._made.allocate(bytes, _host_stream(stream))
        except _C.StatusError as error:
            if error.args[0] == "out_of_memory":
                raise NoMemoryError(error.args[1]) from None
            raise

    def free(self, address: int) -> None:
        """See Machine."""
        with _refused():
            self._made.free(address)

    def poke(
        self, address: int, bytes: int, value: int, stream: Stream = "main", *, late: bool = False
    ) -> Access:
        """See Machine."""
        return self._made.poke(address, bytes, value, _host_stream(stream))

    def peek(self, address: int, bytes: int, stream: Stream = "main", device: int = 0) -> Access:
        """See Machine."""
        return self._made.peek(address, bytes, _host_stream(stream), device)

    def settle(self) -> None:
        """See Machine."""
        self._made.drain()

    def trim(self) -> None:
        """See Machine."""
        self._made.trim()

    def findings(self) -> list[str]:
        """See Machine."""
        return self._made.violations()

    def witness(self, address: int) -> int:
        """See Machine."""
        with _refused():
            return self._made.witness(address)

    def export_descriptor(self, address: int) -> str:
        """See Machine."""
        with _refused():
            return self._made.export_block(address)

    def held_bytes(self) -> int:
        """See Machine."""
        return self._made.held_bytes()


def _host_stream(stream: Stream) -> int:
    return STREAMS.index(stream) << 12


class _refused:  # noqa: N801
    """Turn a failed status into RefusedError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, _: object) -> None:
        if isinstance(error, _C.StatusError):
            raise RefusedError(error.args[1]) from None
