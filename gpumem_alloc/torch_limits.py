"""What torch asks of its allocator that a pluggable one has no hook for: said, or done without.

Without this module these calls end in torch's "does not yet support", far from their cause.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from gpumem_alloc import sharing, watch
from gpumem_alloc.errors import AllocatorError

_AUTOTUNING = (
    "gpumem_alloc: cuDNN's autotuning (torch.backends.cudnn.benchmark) stays off: it asks the "
    "allocator for its largest free piece, which torch's pluggable allocators cannot answer; set "
    "benchmark = False to silence this, or take the bridge, which can "
    "(`python -m gpumem_alloc bridge status` says what it needs)"
)
_TAKE_THE_BRIDGE = (
    "Take the bridge, which can: `python -m gpumem_alloc bridge status` says what it needs."
)

_told_of_autotuning = False


# --- cuDNN's autotuner ------------------------------------------------------------------------


def keep_autotuning_off(torch: Any, is_current: Callable[[], bool]) -> None:
    """From now on cuDNN's autotuning stays off while `is_current()`. Once a process.

    What sets torch.backends.cudnn.benchmark works and warns once; convolutions then take the
    algorithm of cuDNN's heuristics.
    """
    original = torch._C._set_cudnn_benchmark

    @functools.wraps(original)
    def set_benchmark(wanted: bool) -> None:
        is_refused = bool(wanted) and is_current()
        original(False if is_refused else wanted)
        if is_refused:
            _tell_of_autotuning()

    torch._C._set_cudnn_benchmark = set_benchmark
    # The property took hold of the function when torch was imported.
    module = type(torch.backends.cudnn)
    prop = vars(module).get("benchmark")
    if getattr(prop, "setter", None) is original:
        prop.setter = set_benchmark


def turn_autotuning_off(torch: Any) -> None:
    """For the moment in which ours becomes the current allocator."""
    if torch._C._get_cudnn_benchmark():
        torch._C._set_cudnn_benchmark(True)  # ours, which refuses


def _tell_of_autotuning() -> None:
    global _told_of_autotuning
    if _told_of_autotuning:
        return
    _told_of_autotuning = True
    file, line = watch.user_place()
    warnings.warn_explicit(_AUTOTUNING, RuntimeWarning, file, line)


# --- torch.compile's CUDA graph trees -------------------------------------------------------------


def graph_tree_calls() -> dict[str, Callable[..., Any]]:
    """Replacements, by name in torch._C, for what graph trees call (torch 2.11 - 2.15)."""
    return {
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_record_memory_history": _record_history,
        "_cuda_record_memory_history_legacy": _record_history,
        "_cuda_checkPoolLiveAllocations": _refused("check which blocks of a pool are live"),
        "_cuda_getCheckpointState": _refused("read the state of a pool"),
        "_cuda_setCheckpointPoolState": _refused("put a pool back into an earlier state"),
    }


def _refused(action: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any, **_keywords: Any) -> None:
        raise AllocatorError(
            f"torch cannot {action}: its pluggable allocators have no hook for it.\n"
            'CUDA graph trees ask for it: torch.compile(mode="reduce-overhead") and '
            '"max-autotune" use them.\n'
            f"{_TAKE_THE_BRIDGE} Or set torch._inductor.config.triton.cudagraph_trees = False to "
            "compile to CUDA graphs without them; to see memory, record with "
            "`python -m gpumem_alloc record`.",
            "not_supported",
        )

    return refuse


_refuse_history = _refused("record its memory history")


def _record_history(enabled: Any = None, *_arguments: Any, **_keywords: Any) -> None:
    if enabled:
        _refuse_history()


# --- pools, observers, sent tensors -----------------------------------------------------------


def explain_refusals(torch: Any, is_current: Callable[[], bool]) -> None:
    """From now on pools, observers and tensors between processes fail with our words. Once."""
    for owner, name, action, outcome in (
        (torch.cuda.MemPool, "__init__", "make a MemPool", "Nothing was made."),
        (
            torch._C, "_cuda_attach_out_of_memory_observer", "tell an observer of running out",
            "It would never be called.",
        ),
        (
            torch.UntypedStorage, "_share_cuda_", "send a CUDA tensor to another process",
            "The receiver gets nothing, and may wait for ever.",
        ),
        (
            torch.UntypedStorage, "_new_shared_cuda", "take a CUDA tensor of another process",
            "This process has none of it.",
        ),
    ):  # fmt: skip
        refusal: Any = _explained(getattr(owner, name), action, outcome, is_current)
        setattr(owner, name, staticmethod(refusal) if name == "_new_shared_cuda" else refusal)
    share = torch.UntypedStorage._share_cuda_
    torch.UntypedStorage._share_cuda_ = _kept_in(share, is_current)


def _kept_in(share: Callable[..., Any], is_current: Callable[[], bool]) -> Callable[..., Any]:
    """The no-sharing mode refuses before the door does: no other door would help."""

    @functools.wraps(share)
    def call(storage: Any, *arguments: Any, **keywords: Any) -> Any:
        if is_current():
            sharing.refuse_leaving(storage.data_ptr())
        return share(storage, *arguments, **keywords)

    return call


def _explained(
    original: Callable[..., Any], action: str, outcome: str, is_current: Callable[[], bool]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        if is_current():
            raise AllocatorError(
                f"torch cannot {action}: its pluggable allocators have no hook for it.\n"
                f"{outcome}\n{_TAKE_THE_BRIDGE}",
                "not_supported",
            )
        return original(*arguments, **keywords)

    return call
