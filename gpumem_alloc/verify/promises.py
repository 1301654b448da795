"""What each level of the no-sharing mode promises, attack by attack: the one table of it.

The exit code of verify-isolation and the tables of the docs follow from it. `certain` is what has
to be held each time; what is held only `sometimes`, or `never`, is reported and not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["stream", "packed", "tensor", "strict"]
Certainty = Literal["certain", "sometimes", "never"]
Place = Literal["host", "card", "two cards", "processes"]

LEVELS: tuple[Level, ...] = ("stream", "packed", "tensor", "strict")


@dataclass(frozen=True)
class Promise:
    """One promise, the attack on it, and where that can be run.

    `host` is the driver on the CPU, `processes` are worker processes without any card.
    """

    name: str
    promise: str
    attack: str
    places: tuple[Place, ...]
    levels: Mapping[Level, Certainty]


def _row(*certainties: Certainty) -> dict[Level, Certainty]:
    return dict(zip(LEVELS, certainties, strict=True))


_ALL = _row("certain", "certain", "certain", "certain")
_BOTH: tuple[Place, ...] = ("host", "card")

PROMISES: tuple[Promise, ...] = (
    Promise(
        "overrun",
        "a write behind a tensor is found",
        "a kernel writes one element behind 1024 of them",
        _BOTH,
        _row("never", "certain", "certain", "certain"),
    ),
    Promise(
        "overrun into padding",
        "a write into the padding behind a tensor is found",
        "a kernel writes one element behind 1001 of them",
        _BOTH,
        _row("never", "certain", "certain", "certain"),
    ),
    Promise(
        "underrun",
        "a write in front of a tensor is found",
        "a kernel writes element -1",
        _BOTH,
        _row("never", "sometimes", "certain", "certain"),
    ),
    Promise(
        "use after free: read",
        "freed memory does not show what was in it",
        "a kernel reads a tensor that was freed before it was launched",
        _BOTH,
        _row("never", "sometimes", "certain", "certain"),
    ),
    Promise(
        "use after free: write",
        "a write to freed memory faults",
        "a kernel writes to a tensor that was freed, when the next has its place",
        _BOTH,
        _row("never", "sometimes", "sometimes", "certain"),
    ),
    Promise(
        "predecessor's data",
        "fresh memory does not show the last tensor's data",
        "a secret is written, its tensor freed, and fresh tensors are read",
        _BOTH,
        _row("never", "certain", "certain", "certain"),
    ),
    Promise(
        "memory given back",
        "memory is overwritten before the driver gets it for another process",
        "a secret is written, its tensor freed and the cache trimmed; its physical memory is read",
        _BOTH,
        _ALL,
    ),
    Promise(
        "cross-stream reuse",
        "no memory passes from one stream to another with data in it",
        "a secret is written on one stream; under a limit another stream needs the memory",
        _BOTH,
        _ALL,
    ),
    Promise(
        "missing record_stream",
        "a late kernel of a stream that was not recorded reaches no other tensor",
        "a kernel on a side stream writes after the tensor was freed and the next was made",
        _BOTH,
        _row("never", "sometimes", "certain", "certain"),
    ),
    Promise(
        "double free",
        "a second free is refused",
        "a tensor is freed twice in a row",
        _BOTH,
        _ALL,
    ),
    Promise(
        "stale free",
        "a second free does not take the next tensor's memory from it",
        "a tensor is freed, another is made, and the first is freed again",
        _BOTH,
        _row("never", "sometimes", "certain", "certain"),
    ),
    Promise(
        "foreign pointer",
        "a free of what was never allocated is refused",
        "an address inside a tensor is freed",
        _BOTH,
        _ALL,
    ),
    Promise(
        "export: descriptor",
        "memory has no file descriptor that another process could map",
        "cuMemExportToShareableHandle on the memory of a tensor",
        _BOTH,
        _ALL,
    ),
    Promise(
        "export: cudaIpc",
        "memory has no CUDA IPC handle",
        "cudaIpcGetMemHandle on the address of a tensor",
        ("card",),
        _ALL,
    ),
    Promise(
        "export: dma-buf",
        "no other device of the host can map memory",
        "cuMemGetHandleForAddressRange with a dma-buf on the memory of a tensor",
        ("card",),
        _ALL,
    ),
    Promise(
        "export: torch",
        "PyTorch refuses to send a CUDA tensor to another process",
        "torch.multiprocessing pickles a CUDA tensor for a process",
        ("card",),
        _ALL,
    ),
    Promise(
        "peer access",
        "no other card reads memory",
        "a kernel of the second card reads a tensor of the first",
        ("host", "two cards"),
        _ALL,
    ),
    Promise(
        "limit",
        "the process never holds more of the card than limit_mb",
        "tensors of all sizes are made until no more can be",
        _BOTH,
        _ALL,
    ),
    *(
        Promise(
            f"workers: {method}",
            "a DataLoader leaves nothing in shared memory inside no_sharing()",
            f"an epoch under {method}: /dev/shm, mappings and descriptors before and after",
            ("processes",),
            _ALL,
        )
        for method in ("fork", "spawn", "forkserver")
    ),
)


_BY_FILLING = ("predecessor's data", "memory given back", "cross-stream reuse")


def certainty(promise: Promise, level: Level, options: Mapping[str, Any]) -> Certainty:
    """Return what a level promises with these options: some of it comes from scrub and poison."""
    fills = options["scrub"] == "on" or (options["poison"] == "on" and level != "stream")
    is_by_filling = promise.name in _BY_FILLING or (
        promise.name == "use after free: read" and level == "tensor"
    )
    return "never" if is_by_filling and not fills else promise.levels[level]
