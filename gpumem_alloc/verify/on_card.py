"""Attacks on a card under PyTorch, in a child process."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import gpumem_alloc
from gpumem_alloc.verify.attacks import ATTACKS, LIMITED, SECRET, seen
from gpumem_alloc.verify.cuda import CudaError, Driver, export_ipc
from gpumem_alloc.verify.kernels import LATE_NS, kernels
from gpumem_alloc.verify.machines import (
    LIMIT_PAGES,
    PIECE_BYTES,
    STREAMS,
    Access,
    Machine,
    NoMemoryError,
    RefusedError,
    Side,
    Stream,
)
from gpumem_alloc.verify.outcome import Outcome, first_line, stopped, through

MIB = 1 << 20
FOUND = ("overrun", "underrun", "write after free")  # kinds of violations, not calls
# Natively only these segments are made of handles that can be mapped and exported.
EXPANDABLE = ("memory given back", "export: descriptor")


class CardMachine(Machine):
    """Device 0, served by PyTorch's allocator or by ours."""

    page_bytes = 2 * MIB
    own_bytes = 32 * MIB

    def __init__(self, side: Side, options: Mapping[str, object], *, limited: bool = False) -> None:
        import torch

        self._torch: Any = torch
        self._is_ours = side == "ours"
        limit_mb = LIMIT_PAGES * self.page_bytes // MIB
        if self._is_ours:
            limit = {"limit_mb": limit_mb} if limited else {}
            gpumem_alloc.enable(**{**options, **limit})  # type: ignore[arg-type]
        elif limited:
            total_bytes = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(limit_mb * MIB / total_bytes)
        self._streams = {"main": torch.cuda.current_stream()}
        self._streams |= {name: torch.cuda.Stream() for name in STREAMS[1:]}
        self._driver = Driver(torch)
        self._kernels = kernels(torch)
        self._told = 0
        self._start_bytes = self._used_bytes_after_one_use()

    def allocate(self, bytes: int, stream: Stream = "main") -> int:
        """See Machine."""
        try:
            address: int = self._torch.cuda.caching_allocator_alloc(
                bytes, stream=self._streams[stream]
            )
        except self._torch.OutOfMemoryError as error:
            raise NoMemoryError(str(error)) from None
        return address

    def free(self, address: int) -> None:
        """See Machine."""
        try:
            self._torch.cuda.caching_allocator_delete(address)
        except RuntimeError as error:
            raise RefusedError(str(error)) from None
        if told := self._new_errors():
            raise RefusedError(told[0])

    def poke(
        self, address: int, bytes: int, value: int, stream: Stream = "main", *, late: bool = False
    ) -> Access:
        """See Machine."""
        spin_ns = LATE_NS if late else 0
        return self._kernels.poke(0, self._number(stream), address, bytes, value, spin_ns)

    def peek(self, address: int, bytes: int, stream: Stream = "main") -> Access:
        """See Machine."""
        return self._kernels.peek(0, self._number(stream), address, bytes)

    def settle(self) -> None:
        """See Machine."""
        self._torch.cuda.synchronize()

    def trim(self) -> None:
        """See Machine."""
        if self._is_ours:
            gpumem_alloc.trim()
        else:
            self._torch.cuda.empty_cache()

    def findings(self) -> list[str]:
        """See Machine."""
        if not self._is_ours:
            return []
        from gpumem_alloc import isolation

        return [str(found) for found in isolation.check()]

    def witness(self, address: int) -> int:
        """Look at all pages of the handle for what is known to be at the address."""
        expected = self.read(address, 64)
        try:
            handle = self._driver.handle_at(address)
            start, size_bytes = self._driver.map_again(handle, self.page_bytes)
        except CudaError as error:
            raise RefusedError(str(error)) from None
        for place in range(start + address % self.page_bytes, start + size_bytes, self.page_bytes):
            if self.read(place, 64) == expected:
                return place
        raise RefusedError("its contents are not found in its handle")

    def export_descriptor(self, address: int) -> str:
        """See Machine."""
        try:
            self._driver.export_descriptor(address)
        except CudaError as error:
            raise RefusedError(str(error)) from None
        return "a file descriptor"

    def held_bytes(self) -> int:
        """See Machine."""
        return self._used_bytes() - self._start_bytes

    def try_ipc(self, address: int) -> None:
        """Make a CUDA IPC handle; CudaError if that is refused."""
        self._driver.call("cuCtxSynchronize")
        export_ipc(address)

    def try_dma_buf(self, address: int, bytes: int) -> None:
        """Make a dma-buf; CudaError if that is refused."""
        self._driver.export_dma_buf(address, bytes)

    def peek_from_second(self, address: int, bytes: int) -> Access:
        """Read with a kernel of the second card."""
        stream = self._torch.cuda.current_stream(1).cuda_stream
        return self._kernels.peek(1, stream, address, bytes)

    def _number(self, stream: Stream) -> int:
        return int(self._streams[stream].cuda_stream)

    def _new_errors(self) -> list[str]:
        """Return what calls could not raise since the last time, but not what was found."""
        if not self._is_ours:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            told = [message for call, message in gpumem_alloc.errors() if call not in FOUND]
        new, self._told = told[self._told :], len(told)
        return new

    def _used_bytes_after_one_use(self) -> int:
        """Load all kernels, which takes memory too."""
        address = self.allocate(PIECE_BYTES)
        self.fill(address, PIECE_BYTES, 0)
        self.read(address, PIECE_BYTES)
        self.free(address)
        self.findings()
        self.settle()
        self.trim()
        return self._used_bytes()

    def _used_bytes(self) -> int:
        free, total = self._torch.cuda.mem_get_info()
        return int(total - free)


def export_ipc_handle(machine: CardMachine) -> Outcome:
    """Ask the runtime for what cudaIpcOpenMemHandle takes."""
    address = machine.allocate(machine.page_bytes)
    return _export(lambda: machine.try_ipc(address), "gave a CUDA IPC handle")


def export_dma_buf(machine: CardMachine) -> Outcome:
    """Ask the driver for what another device can map."""
    size_bytes = machine.page_bytes
    address = machine.allocate(2 * size_bytes)
    return _export(lambda: machine.try_dma_buf(address, size_bytes), "gave a dma-buf")


def export_in_torch(machine: CardMachine) -> Outcome:
    """Pickle a tensor as torch.multiprocessing's queues do."""
    from multiprocessing.reduction import ForkingPickler

    import torch
    import torch.multiprocessing

    tensor = torch.empty(machine.page_bytes, dtype=torch.uint8, device="cuda")
    try:
        ForkingPickler.dumps(tensor)
    except RuntimeError as error:
        return stopped(f"refused: {first_line(str(error))}")
    return through("was pickled, with a handle of its memory")


def peer_access(machine: CardMachine) -> Outcome:
    """Read with a kernel of the second card, after torch has copied a tensor there."""
    import torch

    tensor = torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cuda:0")
    machine.fill(tensor.data_ptr(), PIECE_BYTES, SECRET)
    try:
        tensor.to("cuda:1")
        torch.cuda.synchronize(1)
    except RuntimeError as error:
        return stopped(f"refused: {first_line(str(error))}")
    access = machine.peek_from_second(tensor.data_ptr(), PIECE_BYTES)
    if access.wait() == "fault":
        return stopped("faulted in the kernel")
    return seen(access.data, "reads the tensor's data")


ON_CARD_ONLY: dict[str, Callable[[CardMachine], Outcome]] = {
    "export: cudaIpc": export_ipc_handle,
    "export: dma-buf": export_dma_buf,
    "export: torch": export_in_torch,
    "peer access": peer_access,
}


def run(name: str, side: Side, options: Mapping[str, object]) -> Outcome:
    """Make one attack on one side."""
    if side == "native" and name in EXPANDABLE:
        import torch

        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    machine = CardMachine(side, options, limited=name in LIMITED)
    return ON_CARD_ONLY[name](machine) if name in ON_CARD_ONLY else ATTACKS[name](machine)


def _export(attempt: Callable[[], None], leak: str) -> Outcome:
    try:
        attempt()
    except CudaError as error:
        return stopped(f"refused: {error}")
    return through(leak)
