"""What the ranks run, and what a rank gives to it.

A program is a function of a Rank. It calls `mark` at the end of each of its steps, `rank.steps` in
all, with the step's loss or None. The last step is not timed: what it asks for is recorded, so
that ranks can be compared by the addresses that they get.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..workloads import WORKLOADS

Figures = dict[str, Any]
MOST_ENTRIES = 1_000_000  # of the last step's history
NO_ADDRESSES: Figures = {"asked": None, "addresses": None, "places": None}
GONE = -1  # in place of a segment's address


@dataclass
class Rank:
    """This process among the others, and what was measured in it."""

    torch: Any
    index: int
    count: int
    device: Any  # a torch.device of its own
    steps: int
    ms: list[float] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    noted: Figures = field(default_factory=dict)  # goes into the row
    _begin: float = 0.0

    @property
    def is_cuda(self) -> bool:
        """False where the programs are tried on a CPU."""
        return bool(self.device.type == "cuda")

    def begin(self) -> None:
        """Start the clock."""
        self.barrier()
        self._begin = time.perf_counter()

    def mark(self, loss: Any) -> None:
        """End a step."""
        self.synchronize()
        self.ms.append(round(1e3 * (time.perf_counter() - self._begin), 4))
        self.losses.append("" if loss is None else float(loss).hex())
        if len(self.ms) == self.steps - 1 and self.is_cuda:
            with contextlib.suppress(RuntimeError):  # the stock door keeps none
                self.torch.cuda.memory._record_memory_history(
                    context=None, max_entries=MOST_ENTRIES
                )
        self._begin = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            self.torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        """Wait for the other ranks, where there is a group."""
        if self.torch.distributed.is_initialized():
            self.torch.distributed.barrier()

    def addresses(self) -> Figures:
        """Return what the last step asked for and got, as digests; ends the recording."""
        memory = self.torch.cuda.memory
        try:
            found = memory._snapshot()
            memory._record_memory_history(None)
        except RuntimeError:
            return NO_ADDRESSES
        traces, here = found["device_traces"], self.device.index
        entries = traces[here] if here < len(traces) else []
        made = [entry for entry in entries if entry["action"] == "alloc"]
        segments = [each for each in found["segments"] if each["device"] == here]
        return addresses_of(made, segments) if made else NO_ADDRESSES


def addresses_of(made: list[Figures], segments: list[Figures]) -> Figures:
    """Digest a history's allocations, against the segments at its end.

    `asked` is of the sizes, each with the number of its stream; `addresses` is of the addresses
    themselves; `places` is of how far each is into its segment, with the segment's number, so that
    it does not matter where the driver put a segment. Streams and segments are numbered by their
    first use. What lies in none, since its segment is gone, counts from the lowest such address.
    """
    ends = {each["address"]: each["address"] + each["total_size"] for each in segments}
    begins = sorted(ends)

    def segment_of(address: int) -> int:
        at = bisect.bisect_right(begins, address) - 1
        return begins[at] if at >= 0 and address < ends[begins[at]] else GONE

    found = [segment_of(entry["addr"]) for entry in made]
    lost = [entry["addr"] for entry, begin in zip(made, found, strict=True) if begin == GONE]
    streams = numbered(entry["stream"] for entry in made)
    numbers = numbered(found)
    asked, addresses, places = [], [], []
    for entry, begin in zip(made, found, strict=True):
        base = min(lost) if begin == GONE else begin
        asked.append((streams[entry["stream"]], entry["size"]))
        addresses.append((entry["addr"], entry["size"]))
        places.append((numbers[begin], entry["addr"] - base, entry["size"]))
    digests = {"asked": asked, "addresses": addresses, "places": places}
    return {name: digest(each) for name, each in digests.items()} | {"requests": len(made)}


def numbered(values: Iterable[int]) -> dict[int, int]:
    """Number values in the order in which they come up."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def digest(value: object) -> str:
    """Return a short name of a value."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Program:
    """A function of a Rank, and what is to be known of it."""

    run: Callable[[Rank], None]
    steps: int  # the first makes the model, the last is recorded
    is_alike: bool = True  # every rank asks for the same memory
    # The same on one device, by the last rank, which has the losses; the others wait.
    alone: Callable[[Rank], None] | None = None

    @property
    def name(self) -> str:
        """The function's own."""
        return self.run.__name__


def find(name: str) -> Program:
    """Return a program: one of ours, a workload of the benchmark, or "module:name".

    Raises ValueError for one that does not exist.
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        found: Program = getattr(importlib.import_module(module), attribute)
        return found
    from . import parallel, training

    programs = {each.name: each for each in (*training.PROGRAMS, *parallel.PROGRAMS)}
    if name in programs:
        return programs[name]
    if name not in WORKLOADS:
        raise ValueError(
            f"no program {name!r}: there are {', '.join(programs)}, and the workloads of the bench"
        )
    return of_workload(name)


def of_workload(name: str) -> Program:
    """Return a workload of the benchmark as a program: every rank runs it, for itself."""
    workload = WORKLOADS[name]

    def run(rank: Rank) -> None:
        workload.run(rank.torch, rank.steps, rank.mark)

    run.__name__ = name
    return Program(run, workload.steps)


@contextlib.contextmanager
def measured(rank: Rank) -> Iterator[Figures]:
    """Start the peaks from here, and fill in what they came to."""
    figures: Figures = {"live_peak_bytes": None, "reserved_peak_bytes": None}
    if rank.is_cuda:
        rank.torch.cuda.reset_peak_memory_stats(rank.device)
    yield figures
    with contextlib.suppress(RuntimeError):
        stats = rank.torch.cuda.memory_stats(rank.device) if rank.is_cuda else {}
        figures["live_peak_bytes"] = stats.get("allocated_bytes.all.peak")
        figures["reserved_peak_bytes"] = stats.get("reserved_bytes.all.peak")
