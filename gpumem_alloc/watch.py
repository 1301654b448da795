"""Remembers which line started CUDA, for the error of those who enable too late."""

from __future__ import annotations

import sys
import traceback
from types import FrameType
from typing import Any

from gpumem_alloc.errors import TooLateError

_started_by: traceback.FrameSummary | None = None
_watching = False

_OR_THE_BRIDGE = (
    "; or take the bridge, which may come late: `python -m gpumem_alloc bridge status` says what "
    "it needs"
)

# Modules that have been seen to allocate, or to start CUDA, when imported (NVIDIA/apex#1923,
# openvdb/fvdb-core#105, ROCm/iris#175).
_SUSPECTS = ("apex", "fvdb", "iris", "cupy", "vllm", "deepspeed", "bitsandbytes")


def note_who_starts_cuda() -> None:
    """Ask torch, if it is loaded and CUDA not started, to tell us when it starts CUDA."""
    global _watching
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    later = getattr(cuda, "_lazy_call", None)
    if _watching or cuda is None or later is None or cuda.is_initialized():
        return
    _watching = True
    later(_remember)


def _remember() -> None:
    global _started_by
    _started_by = _user_line(sys._getframe())


def _user_line(frame: FrameType | None) -> traceback.FrameSummary | None:
    """The innermost frame outside torch and this package."""
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("torch", "contextlib", __name__.partition(".")[0]):
            return traceback.FrameSummary(
                frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
            )
        frame = frame.f_back
    return None


def user_place() -> tuple[str, int]:
    """Return the file and line of the innermost frame outside torch and this package."""
    line = _user_line(sys._getframe())
    return ("<unknown>", 0) if line is None else (line.filename, line.lineno or 0)


def _place(line: traceback.FrameSummary) -> str:
    source = f": `{line.line}`" if line.line else ""
    return f"{line.filename}:{line.lineno} in {line.name}{source}"


def who_started_cuda() -> str:
    """Return a sentence on what started CUDA, as far as it is known."""
    if _started_by is not None:
        return f"CUDA was started by {_place(_started_by)}."
    suspects = [name for name in _SUSPECTS if name in sys.modules]
    if suspects:
        return f"Loaded modules that may have started CUDA: {', '.join(suspects)}."
    return (
        "CUDA was started before gpumem_alloc could see by what; import torch, then gpumem_alloc, "
        "at the top of the program to have the line named."
    )


def refuse_late(torch: Any) -> None:
    """Raise TooLateError, with the line that was first, if torch has started CUDA."""
    if torch.cuda.is_initialized():
        raise too_late(who_started_cuda(), _OR_THE_BRIDGE)


def too_late(why: str, otherwise: str = "") -> TooLateError:
    """Return the error for a swap after another allocator has been started.

    `otherwise` ends its last line.
    """
    line = _user_line(sys._getframe())
    call = "the call" if line is None else _place(line)
    return TooLateError(
        "too late to replace PyTorch's CUDA allocator: it has been started.\n"
        f"{why}\n"
        f"Move {call} above that, best to directly after `import torch`{otherwise}."
    )
