"""Allocation patterns out of public bug reports, in deterministic miniature.

Each function yields operations: `Allocate`, `Free`, or `Empty` (give idle memory back). The sizes
are those of the reports; the comments say what goes wrong with a caching allocator. `rmm_log`
writes a pattern as an RMM log, which every replay can read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Allocate:
    """Get `size` bytes on a stream and call them `name`."""

    name: str
    size: int
    stream: int = 0


@dataclass(frozen=True)
class Free:
    """Free what is called `name`."""

    name: str


@dataclass(frozen=True)
class Empty:
    """Empty the cache."""


Operation = Allocate | Free | Empty
Pattern = Iterator[Operation]


def _random(state: int) -> Iterator[int]:
    """Yield numbers of 31 bits from Knuth's 64-bit linear congruential generator."""
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield state >> 33


def rocm6333() -> Pattern:
    """Logits whose length follows the number of tokens, beside two large fixed buffers."""
    for index, tokens in enumerate([14000, 17000, 19000, 20480, 16000, 14500] * 3):
        names = [f"logits{index}", f"first{index}", f"second{index}"]
        buffer = int(3.7695 * GIB)
        for name, size in zip(names, [tokens * 151936 * 2, buffer, buffer], strict=True):
            yield Allocate(name, size)
        yield from map(Free, names)


def vllm56457(calls: int = 80, layers: int = 1) -> Pattern:
    """A buffer that is a little larger in each call."""
    for call in range(1, calls + 1):
        for layer in range(layers):
            yield Allocate(f"{call}/{layer}", 3200 * (call * 3200 // 4) * 4)
            yield Free(f"{call}/{layer}")


def vllm52950(calls: int = 20) -> Pattern:
    """Two buffers of 1 GiB, each time on streams that were not used before (of 32)."""
    for call in range(calls):
        for half in range(2):
            yield Allocate(f"{call}/{half}", GIB, 1 + (2 * call + half) % 32)
        for half in range(2):
            yield Free(f"{call}/{half}")


def pt35901() -> Pattern:
    """A large block is freed, every second of many small ones stays where it was."""
    large, sizes = 11643387904, [16515072, 16515072, 11400192, 18191360, 18191360, 18191360]
    yield Allocate("large", large)
    yield Free("large")
    for index in range(60):
        yield Allocate(f"small{index}", sizes[index % len(sizes)])
    for index in range(1, 60, 2):
        yield Free(f"small{index}")
    yield Allocate("again", large)
    yield Free("again")


def pt123548(count: int = 223) -> Pattern:
    """A control: one large block, then many of a fifth of its size that all stay."""
    yield Allocate("large", 50 * 800 * 1200 * 3 * 4)
    yield Free("large")
    for index in range(count):
        yield Allocate(f"batch{index}", 10 * 800 * 1200 * 3 * 4)


def pin_small(count: int = 1000) -> Pattern:
    """Few survivors of 1.5 MiB keep segments of 20 MiB from being given back."""
    for index in range(count):
        yield Allocate(f"piece{index}", 3 * MIB // 2)
    for index in range(count):
        if index % 13 != 0:
            yield Free(f"piece{index}")
    yield Empty()


def big_small_big(small: int = 2 * MIB) -> Pattern:
    """A small block is cut from a large free one, and the large request comes again."""
    yield Allocate("large", 4 * GIB)
    yield Free("large")
    yield Allocate("small", small)
    yield Allocate("again", 4 * GIB)


def kvcat(layers: int = 32, start: int = 1024, steps: int = 1024, token: int = 8192) -> Pattern:
    """A cache of keys and values that grows by one token through concatenation."""
    caches = [f"{kind}{layer}" for layer in range(layers) for kind in ("k", "v")]
    for cache in caches:
        yield Allocate(f"{cache}.{start}", start * token)
    for length in range(start + 1, start + steps + 1):
        for cache in caches:
            yield Allocate(f"{cache}.{length}", length * token)
            yield Free(f"{cache}.{length - 1}")


def _layers(step: int, layers: int, small: int, large: int) -> Iterator[Operation]:
    for layer in range(layers):
        yield Allocate(f"{step}.{layer}a", small)
        yield Allocate(f"{step}.{layer}b", large)


def _layers_freed(step: int, layers: int) -> Iterator[Operation]:
    for layer in reversed(range(layers)):
        yield Free(f"{step}.{layer}b")
        yield Free(f"{step}.{layer}a")


def varlen(
    seed: int = 7,
    steps: int = 200,
    layers: int = 24,
    hidden: int = 4096,
    shortest: int = 64,
    longest: int = 2048,
    batch: int = 4,
) -> Pattern:
    """Training steps over sentences of any length; all sizes follow the length."""
    numbers = _random(seed)
    for step in range(steps):
        length = shortest + next(numbers) % (longest - shortest + 1)
        yield from _layers(
            step, layers, batch * length * hidden * 2, batch * length * 4 * hidden * 2
        )
        for name in ("logits", "gradient"):
            yield Allocate(f"{step}.{name}", batch * length * 32000 * 4)
        for name in ("logits", "gradient"):
            yield Free(f"{step}.{name}")
        yield from _layers_freed(step, layers)


def growlen(steps: int = 30, layers: int = 24, hidden: int = 4096, batch: int = 4) -> Pattern:
    """Training steps whose length grows by 64 tokens each time."""
    for step in range(steps):
        length = 128 + 64 * step
        yield from _layers(
            step, layers, batch * length * hidden * 2, batch * length * 4 * hidden * 2
        )
        yield from _layers_freed(step, layers)


def gnn(seed: int = 11, steps: int = 300, layers: int = 8, features: int = 256) -> Pattern:
    """Batches of eight graphs with any number of nodes and edges."""
    numbers = _random(seed)
    for step in range(steps):
        nodes = sum(10 + next(numbers) % 9991 for _ in range(8))
        edges = nodes * (6 + next(numbers) % 10)
        yield from _layers(step, layers, nodes * features * 4, edges * features * 4)
        yield from _layers_freed(step, layers)


def optstep(count: int = 24, parameter: int = 50 * MIB, activation: int = 80 * MIB) -> Pattern:
    """A control: the optimizer's state appears in the first step, between gradients."""
    for index in range(count):
        yield Allocate(f"parameter{index}", parameter)
    for step in range(2):
        for index in range(count):
            yield Allocate(f"activation{step}.{index}", activation)
        for index in reversed(range(count)):
            yield Allocate(f"gradient{step}.{index}", parameter)
            yield Free(f"activation{step}.{index}")
        if step == 0:
            for index in range(count):
                yield Allocate(f"mean{index}", parameter)
                yield Allocate(f"variance{index}", parameter)
        for index in range(count):
            yield Free(f"gradient{step}.{index}")


def ckpt(count: int = 200) -> Pattern:
    """A checkpoint is loaded beside the model; afterwards nearly half of all is idle."""
    sizes = [(8 + index * 37 % 190) * MIB for index in range(count)]
    for index, size in enumerate(sizes):
        yield Allocate(f"weight{index}", size)
    for index, size in enumerate(sizes):
        yield Allocate(f"loaded{index}", 2 * size)
    for index, size in enumerate(sizes):
        yield Allocate(f"mean{index}", size)
        yield Allocate(f"variance{index}", size)
    for index in range(count):
        yield Free(f"loaded{index}")
    yield Allocate("gathered", 3 * GIB)
    yield Free("gathered")


def comb2(count: int = 400, tooth: int = 64 * MIB, large: int = 9 * GIB) -> Pattern:
    """Every second tooth of a comb is freed; together the gaps hold what comes next."""
    yield Allocate("whole", count * tooth)
    yield Free("whole")
    for index in range(count):
        yield Allocate(f"tooth{index}", tooth)
    for index in range(1, count, 2):
        yield Free(f"tooth{index}")
    yield Allocate("large", large)


PATTERNS: dict[str, Callable[[], Pattern]] = {
    function.__name__: function
    for function in (
        rocm6333,
        vllm56457,
        vllm52950,
        pt35901,
        pt123548,
        pin_small,
        big_small_big,
        kvcat,
        varlen,
        growlen,
        gnn,
        optstep,
        ckpt,
        comb2,
    )
}


def rmm_log(operations: Iterable[Operation]) -> str:
    """Return a pattern as an RMM log with integer times. That format has no row for `Empty`."""
    rows = ["Thread,Time,Action,Pointer,Size,Stream"]
    live: dict[str, tuple[int, Allocate]] = {}
    for index, operation in enumerate(operations):
        if isinstance(operation, Allocate):
            pointer = (0x7F << 40) + index * 2 * MIB
            live[operation.name] = (pointer, operation)
            action, block = "allocate", operation
        elif isinstance(operation, Free):
            pointer, block = live.pop(operation.name)
            action = "free"
        else:
            continue
        rows.append(f"1,{index},{action},{pointer:#x},{block.size},{block.stream}")
    return "\n".join(rows) + "\n"
