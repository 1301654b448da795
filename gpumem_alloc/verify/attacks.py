"""The attacks on memory, each on a machine of its own: on the CPU and on a card the same ones."""

from __future__ import annotations

from collections.abc import Callable

from gpumem_alloc.verify.machines import (
    LIMIT_PAGES,
    PIECE_BYTES,
    HostMachine,
    Machine,
    NoMemoryError,
    RefusedError,
)
from gpumem_alloc.verify.outcome import NotRunError, Outcome, first_line, stopped, through

ELEMENT_BYTES = 4
SECRET, MARK = 0x5A, 0x11
PATTERN = b"\xfd\xff\xfd\xff"
CHANGED = "changed another tensor"
FAULTED = "faulted in the kernel"
Attack = Callable[[Machine], Outcome]


def seen(data: bytes, leak: str) -> Outcome:
    """Judge what was read where SECRET had been written."""
    if bytes([SECRET]) * 16 in data:
        return through(leak)
    if data == PATTERN * (len(data) // len(PATTERN)):
        return stopped("shows 0xFFFDFFFD")
    return stopped("shows other data" if data.strip(b"\0") else "shows zeros")


def overrun(machine: Machine, elements: int = 1024) -> Outcome:
    """Write one element behind a tensor, which in a cache is the next tensor's."""
    size_bytes = elements * ELEMENT_BYTES
    tensor, following = machine.allocate(size_bytes), machine.allocate(size_bytes)
    machine.fill(following, size_bytes, MARK)
    if machine.poke(tensor + size_bytes, ELEMENT_BYTES, SECRET).wait() == "fault":
        return stopped(FAULTED)
    machine.free(tensor)
    return _found(machine) or _reached(machine, following, size_bytes)


def overrun_into_padding(machine: Machine) -> Outcome:
    """Do it where a size is rounded up, so that no other tensor is hit."""
    return overrun(machine, 1001)


def underrun(machine: Machine) -> Outcome:
    """Write one element in front of a tensor."""
    preceding, tensor = machine.allocate(PIECE_BYTES), machine.allocate(PIECE_BYTES)
    machine.fill(preceding, PIECE_BYTES, MARK)
    if machine.poke(tensor - ELEMENT_BYTES, ELEMENT_BYTES, SECRET).wait() == "fault":
        return stopped(FAULTED)
    reached = _reached(machine, preceding)
    machine.free(tensor)
    machine.free(preceding)
    return _found(machine) or reached


def use_after_free_read(machine: Machine) -> Outcome:
    """Read what was freed, with a kernel launched after that."""
    tensor = machine.allocate(PIECE_BYTES)
    machine.fill(tensor, PIECE_BYTES, SECRET)
    machine.free(tensor)
    access = machine.peek(tensor, PIECE_BYTES)
    if access.wait() == "fault":
        return stopped(FAULTED)
    return seen(access.data, "reads the tensor's data")


def use_after_free_write(machine: Machine) -> Outcome:
    """Write to what was freed, when another tensor may have its place."""
    tensor = machine.allocate(PIECE_BYTES)
    machine.fill(tensor, PIECE_BYTES, MARK)
    machine.free(tensor)
    following = machine.allocate(PIECE_BYTES)
    machine.fill(following, PIECE_BYTES, MARK)
    if machine.poke(tensor, PIECE_BYTES, SECRET).wait() == "fault":
        return stopped(FAULTED)
    return _found(machine) or _reached(machine, following)


def predecessors_data(machine: Machine) -> Outcome:
    """Look for a freed tensor's data in fresh ones."""
    outcome = stopped("")
    for size_bytes in (PIECE_BYTES, 3 * machine.page_bytes):
        tensor = machine.allocate(size_bytes)
        machine.fill(tensor, PIECE_BYTES, SECRET)
        machine.free(tensor)
        machine.findings()  # `packed` uses memory again when it was checked
        for fresh in [machine.allocate(size_bytes) for _ in range(8)]:
            outcome = seen(machine.read(fresh, PIECE_BYTES), "shows the last tensor's data")
            if not outcome.stopped:
                return outcome
    return outcome


def memory_given_back(machine: Machine) -> Outcome:
    """Look at the physical memory of a freed tensor when the driver has it."""
    tensor = machine.allocate(2 * machine.page_bytes)
    machine.fill(tensor, PIECE_BYTES, SECRET)
    machine.settle()
    try:
        witness = machine.witness(tensor)
    except RefusedError as error:
        raise NotRunError(f"its memory cannot be looked at: {error}") from None
    machine.free(tensor)
    machine.settle()
    machine.trim()
    return seen(machine.read(witness, PIECE_BYTES), "the driver gets it with the data in it")


def cross_stream_reuse(machine: Machine) -> Outcome:
    """Let a stream need memory under a limit that another stream's tensor has had."""
    page_bytes = machine.page_bytes
    tensor = machine.allocate(LIMIT_PAGES * 3 // 4 * page_bytes, "side")
    for page in range(LIMIT_PAGES * 3 // 4):
        machine.fill(tensor + page * page_bytes, 64, SECRET, "side")
    machine.free(tensor)
    try:
        fresh = machine.allocate(LIMIT_PAGES // 2 * page_bytes, "other")
    except NoMemoryError:
        return stopped("gets no memory of the other stream's")
    pages = range(LIMIT_PAGES // 2)
    data = b"".join(machine.read(fresh + page * page_bytes, 64, "other") for page in pages)
    return seen(data, "shows the other stream's data")


def missing_record_stream(machine: Machine) -> Outcome:
    """Let a kernel of a stream that the allocator knows nothing of write late."""
    tensor = machine.allocate(PIECE_BYTES)
    machine.settle()
    # First launches may wait for the device, and so may the first two at a time.
    for access in [machine.poke(tensor, PIECE_BYTES, MARK, "side") for _ in range(2)]:
        access.wait()
    late = machine.poke(tensor, PIECE_BYTES, SECRET, "side", late=True)
    machine.free(tensor)
    following = machine.allocate(PIECE_BYTES)
    machine.fill(following, PIECE_BYTES, MARK)
    if late.wait() == "fault":
        return stopped(FAULTED)
    if found := _found(machine):
        return found
    reached = _changed(machine, following, PIECE_BYTES)
    return through(CHANGED) if reached else stopped("reached no other tensor")


def double_free(machine: Machine) -> Outcome:
    """Free a tensor twice."""
    tensor = machine.allocate(PIECE_BYTES)
    machine.free(tensor)
    return _refusal(machine, tensor, "was accepted")


def stale_free(machine: Machine) -> Outcome:
    """Free a tensor again when another may have its address."""
    tensor = machine.allocate(PIECE_BYTES)
    machine.free(tensor)
    machine.allocate(PIECE_BYTES)
    return _refusal(machine, tensor, "freed the next tensor")


def foreign_pointer(machine: Machine) -> Outcome:
    """Free an address that no allocation returned."""
    return _refusal(machine, machine.allocate(PIECE_BYTES) + 256, "was accepted")


def export_descriptor(machine: Machine) -> Outcome:
    """Ask for what another process could map."""
    try:
        return through(f"gave {machine.export_descriptor(machine.allocate(machine.page_bytes))}")
    except RefusedError as error:
        return stopped(f"refused: {first_line(str(error))}")


def limit(machine: Machine) -> Outcome:
    """Make tensors until there is no more memory for any."""
    page_bytes = machine.page_bytes
    for size_bytes in (5 * page_bytes, page_bytes, 100_000, 4096):
        try:
            while True:
                machine.allocate(size_bytes)
        except NoMemoryError:
            pass
    held_bytes, limit_bytes = machine.held_bytes(), LIMIT_PAGES * page_bytes
    text = f"held {held_bytes / (1 << 20):.1f} of {limit_bytes >> 20} MiB"
    if machine.own_bytes:
        text += f", with at most {machine.own_bytes >> 20} of page tables"
    return (stopped if held_bytes <= limit_bytes + machine.own_bytes else through)(text)


def peer_access(machine: Machine) -> Outcome:
    """Read with a kernel of another card."""
    assert isinstance(machine, HostMachine)
    tensor = machine.allocate(PIECE_BYTES)
    machine.fill(tensor, PIECE_BYTES, SECRET)
    access = machine.peek(tensor, PIECE_BYTES, device=1)
    if access.wait() == "fault":
        return stopped(FAULTED)
    return seen(access.data, "reads the tensor's data")


def _found(machine: Machine) -> Outcome | None:
    found = machine.findings()
    if not found:
        return None
    return stopped(f"found: {first_line(found[0])}")


def _changed(machine: Machine, tensor: int, size_bytes: int = PIECE_BYTES) -> bool:
    return machine.read(tensor, size_bytes) != bytes([MARK]) * size_bytes


def _reached(machine: Machine, other: int, size_bytes: int = PIECE_BYTES) -> Outcome:
    return through(CHANGED if _changed(machine, other, size_bytes) else "went unnoticed")


def _refusal(machine: Machine, address: int, leak: str) -> Outcome:
    try:
        machine.free(address)
    except RefusedError as error:
        return stopped(f"refused: {first_line(str(error))}")
    return through(leak)


ATTACKS: dict[str, Attack] = {
    "overrun": overrun,
    "overrun into padding": overrun_into_padding,
    "underrun": underrun,
    "use after free: read": use_after_free_read,
    "use after free: write": use_after_free_write,
    "predecessor's data": predecessors_data,
    "memory given back": memory_given_back,
    "cross-stream reuse": cross_stream_reuse,
    "missing record_stream": missing_record_stream,
    "double free": double_free,
    "stale free": stale_free,
    "foreign pointer": foreign_pointer,
    "export: descriptor": export_descriptor,
    "peer access": peer_access,
    "limit": limit,
}
LIMITED = ("cross-stream reuse", "limit")
