"""The stock door: torch's CUDAPluggableAllocator. It needs no compiler, and torch loses much by it.

What can be had back without a hook of torch's is in torch_shim.py and torch_limits.py.
"""

from __future__ import annotations

import warnings
from typing import Any

from gpumem_alloc import _C, torch_shim, watch

LOST = (
    "memory history, MemPool, CUDA graph trees (torch.compile's reduce-overhead), tensors sent "
    "between processes, cuDNN's autotuning and swapping after CUDA was used"
)


class StockDoor:
    """One for a process."""

    name = "stock"
    is_late = False

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.line = f"the stock door of torch {torch.__version__}"

    def refuse_late(self) -> None:
        """Raise TooLateError once PyTorch's own allocator has been started."""
        watch.refuse_late(self._torch)

    def make(self) -> Any:
        """Return the object for torch.cuda.memory.change_current_allocator()."""
        made = self._torch.cuda.memory.CUDAPluggableAllocator(_C.__file__, "gma_malloc", "gma_free")
        for setter, address in _C.stock_door_hooks().items():
            getattr(made.allocator(), setter)(address)
        torch_shim.install(self._torch, made.allocator())
        self._torch.cuda._lazy_call(self._tell_of_copies)
        return made

    def _tell_of_copies(self) -> None:
        """PyTorch's own copies of mapped memory need access from one device to the other."""
        why = self._without_access()
        if why:
            text = (
                f"gpumem_alloc: {why}, and the stock door has no copy that does without: copy by "
                "the CPU, or take the bridge (`python -m gpumem_alloc bridge status` says what it "
                "needs)"
            )
            warnings.warn_explicit(text, RuntimeWarning, *watch.user_place())

    def _without_access(self) -> str:
        """Say why devices do not reach each other's memory; "" where all do."""
        cuda = self._torch.cuda
        devices = range(cuda.device_count())
        if len(devices) < 2:
            return ""
        if _C.options_in_force()["isolation"] != "off":
            return "isolation lets no device reach another's memory"
        if _C.options_in_force()["strategy"] != "paged":
            return ""  # memory of cudaMalloc is copied between any two
        for one in devices:
            for other in devices:
                if one != other and not cuda.can_device_access_peer(one, other):
                    return f"GPU {one} cannot reach the memory of GPU {other}"
        return ""

    def is_current(self) -> bool:
        """Whether PyTorch's CUDA memory comes from here."""
        return torch_shim.is_current()
