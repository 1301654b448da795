"""How a CPU tensor becomes bytes in a message, and a tensor again.

The unit is the Span, a range of one storage. Pickle writes an object once and refers to it after
that, so tensors over one span still share a storage at the other end, and it is sent once.
"""

from __future__ import annotations

import ctypes
import pickle
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from gpumem_alloc import _C
from gpumem_alloc.errors import AllocatorError

Reducer = Callable[[Any], Any]
_BUFFER_PROTOCOL = 5  # of pickle: from it on a buffer is written without a copy before


class Span:
    """Bytes [begin, end) of a CPU storage; pickled, it is a new storage of these bytes."""

    __slots__ = ("__weakref__", "begin", "end", "storage")

    def __init__(self, storage: Any, begin: int, end: int) -> None:
        self.storage, self.begin, self.end = storage, begin, end

    def __reduce_ex__(self, protocol: Any) -> Any:
        count = self.end - self.begin
        if count == 0:
            return storage_of, (b"",)
        address = self.storage.data_ptr() + self.begin
        if protocol < _BUFFER_PROTOCOL:
            return storage_of, (ctypes.string_at(address, count),)
        return storage_of, (pickle.PickleBuffer((ctypes.c_char * count).from_address(address)),)


class _Spans(threading.local):
    """The spans of the message that this thread writes; the pickler's memo keeps them alive."""

    def __init__(self) -> None:
        self.known: WeakValueDictionary[tuple[int, int, int], Span] = WeakValueDictionary()

    def get(self, storage: Any, begin: int, end: int) -> Span:
        key = (storage._cdata, begin, end)
        span = self.known.get(key)
        if span is None:
            span = self.known[key] = Span(storage, begin, end)
        return span


_spans = _Spans()


def storage_of(data: bytes | bytearray) -> Any:
    """Make a storage: over the bytearray that pickle made for us alone, else with a copy."""
    import torch

    if isinstance(data, bytearray):
        return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()
    storage = torch.UntypedStorage(len(data), device="cpu")
    if data:
        ctypes.memmove(storage.data_ptr(), data, len(data))
    return storage


def received_storage(storage: Any) -> Any:
    """Return what was sent as a storage."""
    return storage


def received_tensor(
    kind: Any, storage: Any, dtype: Any, offset: int, size: Any, stride: Any, needs_grad: bool
) -> Any:
    """Make the tensor again; a Parameter is one again."""
    import torch

    tensor = torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, size, stride)
    if kind is torch.nn.parameter.Parameter:
        return kind(tensor, requires_grad=needs_grad)
    return tensor.requires_grad_(needs_grad)


def reduce_storage(storage: Any, previous: Reducer) -> Any:
    """Send a CPU storage as its bytes; leave others to torch, which refuses them."""
    if storage.device.type != "cpu":
        return previous(storage)
    return received_storage, (_spans.get(storage, 0, storage.nbytes()),)


def reduce_tensor(tensor: Any, previous: Reducer) -> Any:
    """Send a dense CPU tensor as the bytes it uses, others in their parts."""
    import torch

    if tensor.device.type == "cuda":
        _refuse_under_isolation()
    is_dense = tensor.layout is torch.strided and not tensor.is_nested
    if tensor.device.type != "cpu" or not is_dense or (tensor.requires_grad and not tensor.is_leaf):
        return previous(tensor)
    if tensor.is_quantized:
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # torch's other way loses the scale
    torch.utils.hooks.warn_if_has_hooks(tensor)
    data = _without_gaps(tensor.detach().resolve_conj().resolve_neg())
    span, offset = _span_of(data)
    metadata = (data.dtype, offset, data.size(), data.stride(), tensor.requires_grad)
    return received_tensor, (type(tensor), span, *metadata)


def _span_of(data: Any) -> tuple[Span, int]:
    """The bytes from the first to the last element, and where the tensor begins in them."""
    storage = data.untyped_storage()
    if data.numel() == 0:
        return _spans.get(storage, 0, 0), 0
    begin = data.storage_offset() * data.element_size()
    return _spans.get(storage, begin, begin + _reach(data) * data.element_size()), 0


def _reach(data: Any) -> int:
    """Elements from the first to behind the last."""
    pairs = zip(data.size(), data.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in pairs)


def _without_gaps(data: Any) -> Any:
    """Return data, or a copy if elements that are not its own lie between its first and last."""
    pairs = zip(data.stride(), data.size(), strict=True)
    reach = 1
    for stride, size in sorted(pair for pair in pairs if pair[1] > 1):
        if stride > reach:
            return _closed(data)
        reach += (size - 1) * stride
    return data


def _closed(data: Any) -> Any:
    """Copy each element once; dimensions that repeat one (stride 0) repeat the copy's."""
    one = data
    for dimension, stride in enumerate(data.stride()):
        if stride == 0 and data.size(dimension) > 1:
            one = one.narrow(dimension, 0, 1)
    return one.clone().expand(data.size())


def _refuse_under_isolation() -> None:
    if not _C.is_made():
        return
    options = _C.options_in_force()
    level = options.get("isolation", "off")
    if level == "off" and options["strategy"] == "isolated":
        level = "tensor"
    if level != "off":
        raise AllocatorError(
            "a CUDA tensor was about to be sent to another process inside no_sharing().\n"
            f"Its memory would be shared, which isolation:{level} rules out; no_sharing() sends "
            "CPU tensors by value, not CUDA tensors.\n"
            "Send tensor.cpu() and let the receiver move it to its device, or send it without "
            "isolation.",
            "not_supported",
        )
