"""The no-sharing mode for a part of a program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpumem_alloc import _C
from gpumem_alloc.errors import AllocatorError, OptionError, translated


@contextmanager
def isolated(level: str = "tensor", all_threads: bool = False) -> Iterator[None]:
    """Give what this thread allocates inside a level of the no-sharing mode; also a decorator.

    `level` is "stream", "packed", "tensor" or "strict". Tensors keep it when they outlive the
    block. What autograd allocates in backward() comes from threads of its own: with `all_threads`
    every thread has the level, except inside a block of its own. The innermost block decides; a
    MemPool or a CUDA graph's pool that is in use goes before it. Leave the block on the thread that
    entered it. Raises OptionError for another level, AllocatorError if gpumem_alloc does not serve
    PyTorch's memory, if the device has no virtual memory management, or in a forked child.
    """
    from gpumem_alloc import door
    from gpumem_alloc.isolation import exit_report

    levels = _C.isolation_levels()[1:]
    if level not in levels:
        raise OptionError(
            f"isolated(): there is no level {level!r}.\n"
            f"The levels are {', '.join(levels)}.\n"
            'Write `with gpumem_alloc.isolated("tensor"):`, or `@gpumem_alloc.isolated("tensor")`.'
        )
    if not door.is_enabled():
        raise AllocatorError(
            "isolated(): gpumem_alloc does not serve PyTorch's CUDA memory.\n"
            "So what is allocated inside would not be isolated.\n"
            "Call gpumem_alloc.enable() first, before the first CUDA tensor."
        )
    with translated():
        _C.begin_region(level, all_threads)
    exit_report.install()
    try:
        yield
    finally:
        with translated():
            _C.end_region(all_threads)
