"""Stands in for cuBLAS and cuDNN on the stand-in card, which has neither: results are not computed.

    with NoBlas(): ...

Matrix products and convolutions give new tensors of the right shape, so that a model asks for the
memory it would ask for, less the libraries' workspaces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_NAMES = (
    "mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "convolution", "convolution_backward",
)  # fmt: skip
_OPERATORS = {getattr(torch.ops.aten, name) for name in _NAMES}


def _like(tensor: Any, device: str) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)


class NoBlas(TorchDispatchMode):  # type: ignore[misc]
    """Answers what the libraries would; everything else goes its way."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket not in _OPERATORS:
            return func(*args, **(kwargs or {}))
        shapes = tree_map(lambda each: _like(each, "meta"), (args, kwargs or {}))
        return tree_map(lambda each: _like(each, "cuda"), func(*shapes[0], **shapes[1]))
