"""The stock door: torch's CUDAPluggableAllocator. It needs no compiler, and torch loses much by it.

What can be had back without a hook of torch's is in torch_shim.py and torch_limits.py.
"""

from __future__ import annotations

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
        return made

    def is_current(self) -> bool:
        """Whether PyTorch's CUDA memory comes from here."""
        return torch_shim.is_current()
