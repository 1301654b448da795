"""CUDA tensors between processes.

torch.multiprocessing sends them as before: queues, pipes, process arguments, share_memory_(). The
receiver has to serve its memory with gpumem_alloc too, since it has to map what was sent; where it
does not, it is told so. Memory of cudaMalloc (strategy `split` or `direct`) can be received by
PyTorch's own allocator as well.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gpumem_alloc import _C
from gpumem_alloc.errors import AllocatorError, translated

_MAGIC = b"gpumem_alloc"  # how a handle of ours begins (csrc/torch/bridge/ipc_handle.cpp)
_MODULE = "gpumem_alloc._bridge"

# Places in the arguments of torch's rebuild_cuda_tensor, torch 2.11 to 2.15.
_STORAGE_CLASS, _DEVICE, _HANDLE, _COUNTER, _COUNTER_OFFSET = 4, 6, 7, 11, 12
_ARGUMENT_COUNT = 15


def share_exclusively(exclusive: bool) -> None:
    """Refuse, from now on, to send a tensor whose memory pages hold other tensors too.

    The receiver of a tensor maps whole pages, so that it could read what else lies on them. Tensors
    made inside exclusive_pages() have pages of their own, and what lies behind their last byte is
    cleared when they are sent. Raises AllocatorError without the bridge.
    """
    _bridge("share_exclusively()").set_share_exclusively(bool(exclusive))


@contextlib.contextmanager
def exclusive_pages(device: Any = None) -> Iterator[None]:
    """Give each CUDA tensor that this thread makes inside physical memory of its own.

    It costs up to one page (2 MiB) a tensor. `device` is the current one by default. Raises
    AllocatorError without the bridge.
    """
    _bridge("exclusive_pages()")
    import torch

    with torch.cuda.device(device):
        pool = torch.cuda.MemPool(no_split=True)
        with torch.cuda.use_mem_pool(pool):
            yield


def refuse_leaving(address: int) -> None:
    """Raise AllocatorError if the no-sharing mode keeps the memory at `address` in this process."""
    with translated():
        _C.check_may_leave(address)


def install() -> None:
    """Let torch.multiprocessing send our tensors by rebuild_cuda_tensor() below. Once a process."""
    from multiprocessing.reduction import ForkingPickler

    import torch
    from torch.multiprocessing import reductions

    original = reductions.reduce_tensor
    if getattr(original, "__module__", None) == __name__:
        return

    def reduce_tensor(tensor: Any) -> Any:
        return _reduced(original(tensor), reductions.rebuild_cuda_tensor)

    reduce_tensor.__doc__ = original.__doc__
    # The module's name is looked up by torch's own functions for nested and sparse tensors.
    reductions.reduce_tensor = reduce_tensor
    kinds = [torch.Tensor, torch.nn.parameter.Parameter, *torch._tensor_classes]
    for kind in kinds:
        ForkingPickler.register(kind, reduce_tensor)


def _reduced(reduced: Any, theirs: Callable[..., Any]) -> Any:
    function, arguments = reduced[:2]
    if function is not theirs or len(arguments) != _ARGUMENT_COUNT:
        return reduced
    handle = arguments[_HANDLE]
    if not isinstance(handle, bytes) or not handle.startswith(_MAGIC):
        return reduced
    return rebuild_cuda_tensor, (*arguments, _passed_along(handle))


def _passed_along(handle: bytes) -> list[Any] | None:
    """The descriptors behind a handle, for a receiver that may not take them out of our table.

    They go through a socket of multiprocessing's, as those of CPU tensors do.
    """
    from multiprocessing.reduction import DupFd

    bridge = sys.modules[_MODULE]
    if bridge.descriptors_can_be_fetched():
        return None
    return [DupFd(number) for number in bridge.shared_descriptors(handle)]


def rebuild_cuda_tensor(*arguments: Any) -> Any:
    """Make a received tensor: torch's function of this name, and one argument more.

    The places of torch's arguments are kept, as some programs change the device among them. Raises
    AllocatorError where this process's memory is not served through the bridge.
    """
    theirs, passed = arguments[:_ARGUMENT_COUNT], arguments[_ARGUMENT_COUNT:]
    descriptors = [one.detach() for one in (passed[0] if passed and passed[0] else ())]
    try:
        bridge = _bridge("receiving this CUDA tensor")
    except AllocatorError:
        for descriptor in descriptors:
            os.close(descriptor)
        _let_go(theirs)
        raise
    from torch.multiprocessing import reductions

    handle = theirs[_HANDLE]
    if descriptors:
        bridge.bring_descriptors(handle, descriptors)
    try:
        return reductions.rebuild_cuda_tensor(*theirs)
    finally:
        if descriptors:
            bridge.withdraw_descriptors(handle)


def _let_go(arguments: tuple[Any, ...]) -> None:
    """Tell the sender that nobody will use this tensor, so that it gets its memory back."""
    with contextlib.suppress(Exception):
        arguments[_STORAGE_CLASS]._release_ipc_counter(
            arguments[_COUNTER], arguments[_COUNTER_OFFSET], device=arguments[_DEVICE]
        )


def _bridge(what: str) -> Any:
    bridge = sys.modules.get(_MODULE)
    if bridge is None or not bridge.is_installed():
        raise AllocatorError(
            f"{what} needs gpumem_alloc to serve this process's CUDA memory through the bridge.\n"
            "Memory that moves is shared by mapping it, which PyTorch's own allocator and its "
            "pluggable ones cannot do.\n"
            'Call gpumem_alloc.enable(door="bridge") first, in sender and receiver, before the '
            "first CUDA tensor; or send CPU tensors.",
            "not_supported",
        )
    return bridge
