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
        if _C.options_in_force()["isolation"] != "off":
            self._torch.cuda._lazy_call(self._tell_of_copies)
        return made

    def _tell_of_copies(self) -> None:
        """PyTorch's own copies between devices need the access that isolation does not give."""
        if self._torch.cuda.device_count() > 1:
            text = (
                "gpumem_alloc: isolation lets no device reach another's memory, and the stock door "
                "has no copy that does without: copy by the CPU, or take the bridge "
                "(`python -m gpumem_alloc bridge status` says what it needs)"
            )
            warnings.warn_explicit(text, RuntimeWarning, *watch.user_place())

    def is_current(self) -> bool:
        """Whether PyTorch's CUDA memory comes from here."""
        return torch_shim.is_current()
