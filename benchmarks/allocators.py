"""The allocators that a benchmark can name, and how a process chooses one.

native, expandable and cudaMallocAsync are PyTorch's. Others are ours: a strategy, options after a
colon, and a door after an @ where it matters:

    paged    paged@stock    paged@bridge    "paged:slack_percent=1;max_chunk_mb=32@stock"

Without a door it is the bridge where that can be built, else the stock door.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

PYTORCHS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
DOORS = ("auto", "stock", "bridge")


def choose(allocator: str, environment: MutableMapping[str, str]) -> str | None:
    """Set what the allocator needs in an environment; returns the door of one of ours.

    Raises ValueError for a door that does not exist.
    """
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "GPUMEM_ALLOC_CONF"):
        environment.pop(name, None)
    if allocator in PYTORCHS:
        if PYTORCHS[allocator]:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = PYTORCHS[allocator]
        return None
    made_of, _, door = allocator.partition("@")
    if (door or "auto") not in DOORS:
        raise ValueError(f"{allocator}: no door {door!r}; there are {', '.join(DOORS)}")
    strategy, _, options = made_of.partition(":")
    settings = [f"strategy:{strategy}", *filter(None, options.replace("=", ":").split(";"))]
    environment["GPUMEM_ALLOC_CONF"] = ",".join(settings)
    return door or "auto"


def enable(torch: Any, door: str | None) -> str | None:
    """Put ours in place where a door says so; returns the door that serves."""
    if door is None:
        return None
    import gpumem_alloc

    gpumem_alloc.enable(**({} if door == "auto" else {"door": door}))
    return "stock" if torch.cuda.get_allocator_backend() == "pluggable" else "bridge"
