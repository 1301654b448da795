"""What a snippet may use to look at and steer the machine it runs on: `import inside`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

ON_RIG = os.environ.get("GMA_TEST_MACHINE") == "rig"
_rig = ctypes.CDLL(None) if ON_RIG else None  # preloaded, so its names are global

# What a real card takes for itself meanwhile (page tables); the stand-in takes nothing.
CARD_NOISE_BYTES = 0 if ON_RIG else 32 << 20


def card_used_bytes(device: int = 0) -> int:
    """Bytes that the card has given out, as the card itself counts them."""
    if _rig is not None:
        _rig.rig_used_bytes.restype = ctypes.c_size_t
        return int(_rig.rig_used_bytes(device))
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def hold(stream: Any) -> None:
    """From now on work queued on `stream` is not done until finish()."""
    if _rig is not None:
        _rig.rig_set_slow(ctypes.c_size_t(stream.cuda_stream), 1)
    else:
        import torch

        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000_000)  # about a second


def finish(stream: Any) -> None:
    """The card gets through all that is queued on `stream`."""
    if _rig is not None:
        _rig.rig_finish(ctypes.c_size_t(stream.cuda_stream))
    else:
        stream.synchronize()


def calls(name: str) -> int:
    """How often the driver's function was called. Rig only."""
    assert _rig is not None
    _rig.rig_call_count.restype = ctypes.c_long
    return int(_rig.rig_call_count(name.encode()))


def fail(name: str, result: int, skip: int = 0, times: int = -1) -> None:
    """Let a driver function return `result`, after `skip` good calls, `times` times. Rig only."""
    assert _rig is not None
    _rig.rig_fail_call(name.encode(), result, ctypes.c_long(skip), ctypes.c_long(times))


def raised(kind: type[BaseException], call: Callable[[], object]) -> str:
    """The text of the exception that `call` must raise."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")
