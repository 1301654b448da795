"""Puts the allocator into PyTorch, through the bridge or through the stock door."""

from __future__ import annotations

import logging
import threading
import warnings
from typing import Any

from gpumem_alloc import _C, stock_door, watch
from gpumem_alloc.bridge.door import BridgeDoor
from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.wanted import ENVIRONMENT as DOOR_ENVIRONMENT
from gpumem_alloc.bridge.wanted import wanted_door
from gpumem_alloc.control import report_fallback
from gpumem_alloc.errors import AllocatorError
from gpumem_alloc.options import ENVIRONMENT, Options, resolve
from gpumem_alloc.stock_door import StockDoor

_log = logging.getLogger("gpumem_alloc")
_door: BridgeDoor | StockDoor | None = None
_made: Any = None  # torch calls into it until the process ends
_made_with: dict[str, Any] = {}
_making = threading.RLock()  # a build takes a while, and another thread may come along


def enable(*, door: str | None = None, **options: object) -> str:
    """Serve PyTorch's CUDA memory from now on, and return one line that says how.

    Call it before the first CUDA tensor. `door` is "bridge" (everything torch.cuda offers; compiled
    once for the installed torch), "stock" (torch's pluggable allocator, no compiler), or "auto":
    the bridge where it can be had, else the stock door with one warning. By default it is what
    GPUMEM_ALLOC_DOOR says, else "auto". Options are those of gpumem_alloc.Options; they win over
    GPUMEM_ALLOC_CONF. `isolation="strict"`, or another level, is the no-sharing mode for the whole
    program; where a device cannot map memory, its first use fails. A second call with the same
    options does nothing. Raises OptionError for a bad option, TooLateError when PyTorch's own
    allocator has served memory and cannot be replaced, AllocatorError when the bridge is asked for
    and cannot be had, where another library's allocator is in place, in a forked child, without
    torch, or with a torch that has no CUDA.
    """
    torch = _torch_with_cuda()
    ours = allocator(door=door, **options)
    if not is_enabled():
        torch.cuda.memory.change_current_allocator(ours)
    assert _door is not None
    line = f"gpumem_alloc {_C.__version__}: {_door.line}{_isolation(_door.is_late)}"
    _log.info("%s, %s", line, _C.print_options_in_force())
    return line


def allocator(*, door: str | None = None, **options: object) -> Any:
    """Return the object for torch.cuda.memory.change_current_allocator().

    It is the same one at every call and lives as long as the process. Arguments and errors are
    those of enable().
    """
    text = resolve(options)
    wanted = wanted_door(door)
    torch = _torch_with_cuda()
    _refuse_forked_child(torch)
    with _making:
        if _made is None:
            _make(torch, wanted, text)
            return _made
    if options and _C.parse_options(text) != _made_with:
        raise AllocatorError(
            "the allocator has options already, and these are others.\n"
            f"It was made with {Options(**_made_with)}.\n"
            f"Give all options in the first call, or in {ENVIRONMENT}."
        )
    assert _door is not None
    _refuse_other_door(door, _door.name)
    if not is_enabled():
        _door.refuse_late()
    return _made


def is_enabled() -> bool:
    """Return whether PyTorch's CUDA memory comes from this package."""
    return _door is not None and _door.is_current()


def _isolation(is_late: bool) -> str:
    """The level in force, for the line that enable() returns."""
    level = _C.options_in_force()["isolation"]
    limits = " for new tensors only: older ones are not isolated" if is_late else ""
    return "" if level == "off" else f", isolation:{level}{limits}"


def _make(torch: Any, wanted: str, text: str) -> None:
    global _door, _made, _made_with
    chosen = _choose(torch, wanted)
    chosen.refuse_late()
    _configure(text)
    _made = chosen.make()
    torch.cuda._lazy_call(report_fallback)
    if _C.options_in_force()["isolation"] != "off":
        from gpumem_alloc.isolation import exit_report

        exit_report.install()
    _door, _made_with = chosen, _C.parse_options(text)


def _choose(torch: Any, wanted: str) -> BridgeDoor | StockDoor:
    if wanted == "stock":
        return StockDoor(torch)
    try:
        return BridgeDoor(torch)
    except BridgeError as error:
        if wanted == "bridge":
            raise
        text = (
            f"gpumem_alloc: the stock door serves torch instead of the bridge: {error.line} "
            f"Lost meanwhile: {stock_door.LOST}. {DOOR_ENVIRONMENT}=stock silences this."
        )
        file, line = watch.user_place()
        warnings.warn_explicit(text, RuntimeWarning, file, line)
        return StockDoor(torch)


def _refuse_other_door(door: str | None, name: str) -> None:
    if door not in (None, "auto", name):
        raise AllocatorError(
            f"the {door} door was asked for, and torch has been given the {name} door.\n"
            "There is one allocator in a process.\n"
            f"Say which door in the first call, or in {DOOR_ENVIRONMENT}."
        )


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
