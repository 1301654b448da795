"""The allocators that a benchmark can name, and how a process chooses one.

ALLOCATORS is the table; a new one is one line there. One of ours may also be written out, as a
strategy or one of the table's names, options after a colon, and a door after an @:

    paged    paged@stock    paged-lean@bridge    "paged:slack_percent=1;max_chunk_mb=32@stock"

Without a door it is the bridge where that can be built, else the stock door.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import shutil
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

DOORS = ("auto", "stock", "bridge")
SPLIT_MB = (32, 64, 128, 512)  # max_split_size_mb, PyTorch's and ours
RMM_WHEELS = ("rmm-cu13", "librmm-cu13", "rapids-logger")
RMM_POOL_BYTES = 1 << 28  # at the start; it grows
# Errors that it finds in kernels become the run's exit code. Those that CUDA's calls return do not:
# torch asks for functions that a driver may lack, and for memory until none is left.
MEMCHECK = (
    "compute-sanitizer", "--tool", "memcheck", "--print-limit", "1", "--report-api-errors", "no",
    "--error-exitcode", "9",
)  # fmt: skip
CLEARED = (
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "GPUMEM_ALLOC_CONF",
)  # fmt: skip


@dataclass(frozen=True)
class Allocator:
    """How one allocator is chosen: by the environment, then by a call once torch is imported."""

    name: str
    label: str  # for tables and pictures
    family: str  # "pytorch", "rmm", "ours" or "tool"
    environment: Mapping[str, str] = field(default_factory=dict)
    after_import: Callable[[Any], None] | None = None  # takes torch; may start CUDA
    door: str | None = None  # of ours: one of DOORS
    modules: tuple[str, ...] = ()  # beside torch
    requires: tuple[str, ...] = ()  # what pip is asked for where a module is missing
    wrapper: tuple[str, ...] = ()  # of a tool: the command that the process is started through

    @property
    def missing(self) -> list[str]:
        """What must be installed before it can be used; empty if nothing. Of a tool not by pip."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        absent += [name for name in self.wrapper[:1] if shutil.which(name) is None]
        return list(self.requires) if absent else []


def _pytorchs(name: str, label: str, settings: str = "", **others: Any) -> Allocator:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    return Allocator(name, label, "pytorch", **{"environment": environment, **others})


def _rmms(name: str, label: str, make_resource: Callable[[], None]) -> Allocator:
    def put_in_place(torch: Any) -> None:
        make_resource()
        door: Any = importlib.import_module("rmm.allocators.torch")
        torch.cuda.memory.change_current_allocator(door.rmm_torch_allocator)

    return Allocator(
        name, label, "rmm", after_import=put_in_place, modules=("rmm",), requires=RMM_WHEELS
    )


def _ours(name: str, label: str, settings: str) -> Allocator:
    return Allocator(name, label, "ours", {"GPUMEM_ALLOC_CONF": settings}, door="auto")


def _whole_card(torch: Any) -> None:
    """Set the limit without which PyTorch does not look at garbage_collection_threshold."""
    torch.cuda.set_per_process_memory_fraction(1.0)


def _rmm_pool() -> None:
    rmm: Any = importlib.import_module("rmm")
    rmm.reinitialize(pool_allocator=True, initial_pool_size=RMM_POOL_BYTES)


def _rmm_arena() -> None:
    resources: Any = importlib.import_module("rmm").mr
    upstream = resources.CudaMemoryResource()
    resources.set_current_device_resource(resources.ArenaMemoryResource(upstream))


def _rmm_async() -> None:
    resources: Any = importlib.import_module("rmm").mr
    resources.set_current_device_resource(resources.CudaAsyncMemoryResource())


_TABLE = (
    _pytorchs("native", "PyTorch default"),
    *(
        _pytorchs(f"native-split{mb}", f"PyTorch, split at {mb} MiB", f"max_split_size_mb:{mb}")
        for mb in SPLIT_MB
    ),
    _pytorchs("native-roundup8", "PyTorch, sizes in 8 steps", "roundup_power2_divisions:8"),
    _pytorchs(
        "native-gc80", "PyTorch, garbage collected at 80 %", "garbage_collection_threshold:0.8",
        after_import=_whole_card,
    ),
    _pytorchs("expandable", "PyTorch, expandable segments", "expandable_segments:True"),
    _pytorchs("cudaMallocAsync", "PyTorch, cudaMallocAsync", "backend:cudaMallocAsync"),
    _pytorchs(
        "no-caching", "PyTorch without its cache",
        environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    ),
    _rmms("rmm-pool", "RMM pool", _rmm_pool),
    _rmms("rmm-arena", "RMM arena (half of the free memory, from the start)", _rmm_arena),
    _rmms("rmm-async", "RMM async", _rmm_async),
    _ours("paged", "ours, paged", "strategy:paged"),
    _ours("paged-lean", "ours, paged, preset lean", "strategy:paged,preset:lean"),
    _ours("paged-fast", "ours, paged, preset fast", "strategy:paged,preset:fast"),
    _ours("split", "ours, split", "strategy:split"),
    *(
        _ours(f"split{mb}", f"ours, split at {mb} MiB", f"strategy:split,max_split_size_mb:{mb}")
        for mb in SPLIT_MB
    ),
    _ours("direct", "ours, no caching", "strategy:direct"),
    *(
        _ours(f"isolated-{level}", f"ours, isolation {level}", f"isolation:{level}")
        for level in ("stream", "packed", "tensor", "strict")
    ),
    Allocator(
        "memcheck", "PyTorch without its cache, under compute-sanitizer memcheck", "tool",
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, wrapper=MEMCHECK,
        requires=("a CUDA toolkit's compute-sanitizer",),
    ),
)  # fmt: skip

ALLOCATORS = {each.name: each for each in _TABLE}
NATIVES = tuple(each.name for each in _TABLE if each.family == "pytorch")


def find(name: str) -> Allocator:
    """Return the allocator of a name, in the table or written out.

    Raises ValueError for a name, a door or an option that does not exist.
    """
    if name in ALLOCATORS:
        return ALLOCATORS[name]
    made_of, _, door = name.partition("@")
    base, _, options = made_of.partition(":")
    found = ALLOCATORS.get(base)
    if found is None:
        near = difflib.get_close_matches(base, ALLOCATORS, 3, 0.5)
        hint = f"near it is {', '.join(near)}" if near else f"there are {', '.join(ALLOCATORS)}"
        raise ValueError(f"{name}: no allocator {base!r}; {hint}")
    if found.family != "ours":
        raise ValueError(f"{name}: only ours take options or a door, and {base} is not")
    if (door or "auto") not in DOORS:
        raise ValueError(f"{name}: no door {door!r}; there are {', '.join(DOORS)}")
    return _written_out(found, name, options, door)


def _written_out(base: Allocator, name: str, options: str, door: str) -> Allocator:
    settings = ",".join(
        [
            base.environment["GPUMEM_ALLOC_CONF"],
            *(each.replace("=", ":", 1) for each in options.split(";") if each),
        ]
    )
    from gpumem_alloc import _C  # here, so that a process that measures PyTorch's is free of us

    try:
        _C.parse_options(settings)
    except _C.StatusError as error:
        raise ValueError(f"{name}: {error.args[1]}") from None
    shown = [base.label, *filter(None, [options.replace(";", ", ")])]
    if door not in ("", "auto"):
        shown.append("bridge" if door == "bridge" else "stock door")
    return replace(
        base, name=name, label=", ".join(shown), environment={"GPUMEM_ALLOC_CONF": settings},
        door=door or "auto",
    )  # fmt: skip


def choose(allocator: str, environment: MutableMapping[str, str]) -> str | None:
    """Set what the allocator needs in an environment; returns the door of one of ours.

    Raises ValueError as find() does.
    """
    found = find(allocator)
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # NVML's order
    for name in CLEARED:
        environment.pop(name, None)
    environment.update(found.environment)
    return found.door


def enable(torch: Any, door: str | None) -> str | None:
    """Put ours in place where a door says so; returns the door that serves."""
    if door is None:
        return None
    import gpumem_alloc

    gpumem_alloc.enable(**({} if door == "auto" else {"door": door}))
    return "stock" if torch.cuda.get_allocator_backend() == "pluggable" else "bridge"


def put_in_place(torch: Any, allocator: str) -> str | None:
    """Do what remains after choose() and the import of torch; returns the door of one of ours.

    CUDA may start in it, and no tensor may have been on the card before.
    """
    found = find(allocator)
    if found.after_import is not None:
        found.after_import(torch)
    return enable(torch, found.door)
