"""The stock door: puts the allocator into PyTorch through CUDAPluggableAllocator."""

from __future__ import annotations

import logging
from typing import Any

from gpumem_alloc import _C, torch_shim, watch
from gpumem_alloc.control import report_fallback
from gpumem_alloc.errors import AllocatorError
from gpumem_alloc.options import ENVIRONMENT, Options, resolve

_log = logging.getLogger("gpumem_alloc")
_made: Any = None  # torch calls into it until the process ends
_made_with: dict[str, Any] = {}


def enable(**options: object) -> str:
    """Serve PyTorch's CUDA memory from now on, and return one line that says how.

    Call it before the first CUDA tensor. Options are those of gpumem_alloc.Options; they win over
    GPUMEM_ALLOC_CONF. A second call with the same options does nothing. Raises OptionError for a
    bad option, TooLateError when PyTorch's own allocator has served memory, AllocatorError in a
    forked child, without torch, or with a torch that has no CUDA.
    """
    torch = _torch_with_cuda()
    ours = allocator(**options)
    if not is_enabled():
        torch.cuda.memory.change_current_allocator(ours)
    line = f"gpumem_alloc {_C.__version__}: the stock door of torch {torch.__version__}"
    _log.info("%s, %s", line, _C.print_options_in_force())
    return line


def allocator(**options: object) -> Any:
    """Return the object for torch.cuda.memory.change_current_allocator().

    It is the same one at every call and lives as long as the process. Options and errors are those
    of enable().
    """
    global _made, _made_with
    text = resolve(options)
    torch = _torch_with_cuda()
    _refuse_forked_child(torch)
    if _made is None:
        watch.refuse_late(torch)
        _configure(text)
        made = torch.cuda.memory.CUDAPluggableAllocator(_C.__file__, "gma_malloc", "gma_free")
        for setter, address in _C.stock_door_hooks().items():
            getattr(made.allocator(), setter)(address)
        torch_shim.install(torch, made.allocator())
        torch.cuda._lazy_call(report_fallback)
        _made, _made_with = made, _C.parse_options(text)
    elif options and _C.parse_options(text) != _made_with:
        raise AllocatorError(
            "the allocator has options already, and these are others.\n"
            f"It was made with {Options(**_made_with)}.\n"
            f"Give all options in the first call, or in {ENVIRONMENT}."
        )
    elif not is_enabled():
        watch.refuse_late(torch)
    return _made


def is_enabled() -> bool:
    """Return whether PyTorch's CUDA memory comes from this package."""
    return _made is not None and torch_shim.is_current()


def _configure(text: str) -> None:
    try:
        _C.configure(text)
    except _C.StatusError as error:
        code, message = error.args
        raise AllocatorError(message, code) from None


def _torch_with_cuda() -> Any:
    try:
        import torch
    except ImportError:
        raise AllocatorError(
            "PyTorch cannot be imported.\nThis package serves PyTorch's memory.\n"
            "Install a CUDA build of torch, or use `python -m gpumem_alloc replay` without it.",
            "not_supported",
        ) from None
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise AllocatorError(
            f"torch {torch.__version__} is a build without CUDA.\n"
            "There is no CUDA memory to serve.\n"
            "Install a CUDA build, see https://pytorch.org/get-started/locally/.",
            "not_supported",
        )
    return torch


def _refuse_forked_child(torch: Any) -> None:
    if torch.cuda._is_in_bad_fork():
        raise AllocatorError(
            "this process was forked after CUDA had been started.\n"
            "CUDA does not work in such a child.\n"
            'Start it with torch.multiprocessing.set_start_method("spawn").',
            "forked",
        )
