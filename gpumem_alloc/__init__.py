"""A GPU-memory allocator for PyTorch."""

from gpumem_alloc._C import __version__

__all__ = ["__version__"]
