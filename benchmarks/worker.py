"""Run one workload under one allocator, in this process, and print one line of JSON.

    python -m benchmarks.worker --workload gnn --allocator paged

ALLOCATOR is one of benchmarks/allocators.py. It must be a process of its own: an allocator is
chosen once, before CUDA starts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from typing import Any

from benchmarks.allocators import choose, enable
from benchmarks.card_memory import CardMemory
from benchmarks.workloads import WORKLOADS

SEED = 0
OUR_COUNTERS = (
    "num_sync_all_streams", "num_device_alloc", "num_device_free", "moved_chunks", "moved_bytes",
    "stream_waits", "leaked_handles",
)  # fmt: skip


def make_deterministic(torch: Any) -> None:
    """Let torch take kernels that add in a fixed order; CUBLAS_WORKSPACE_CONFIG must be set."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False


def measure(torch: Any, name: str, steps: int) -> dict[str, Any]:
    """Run the steps; times in ms without what is measured around them, losses as exact text."""
    times_ms: list[float] = []
    losses: list[str] = []
    begin = time.perf_counter()

    def mark(loss: Any) -> None:
        nonlocal begin
        torch.cuda.synchronize()
        times_ms.append(round(1e3 * (time.perf_counter() - begin), 4))
        losses.append("" if loss is None else float(loss).hex())
        begin = time.perf_counter()

    WORKLOADS[name].run(torch, steps, mark)
    return {"step_ms": times_ms, "losses": losses}


def statistics(torch: Any, is_ours: bool) -> dict[str, int]:
    """Return the allocator's own figures at the end."""
    stats = torch.cuda.memory_stats()
    found = {
        "live_peak_bytes": stats["allocated_bytes.all.peak"],
        "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
        "allocations": stats["allocation.all.allocated"],
        "alloc_retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
    }
    if is_ours:
        import gpumem_alloc

        ours = gpumem_alloc.stats()
        found |= {name: ours[name] for name in OUR_COUNTERS}
        gpumem_alloc.audit()
        if problems := gpumem_alloc.errors():
            raise RuntimeError(f"frees or hooks failed: {problems}")
    return found


def machine(torch: Any) -> dict[str, Any]:
    """Say on what this ran."""
    import gpumem_alloc
    from gpumem_alloc import _C

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "gpu_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "gpumem_alloc": gpumem_alloc.__version__,
        "git_id": _C.git_id or os.environ.get("GMA_GIT_ID", ""),
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run and return the row."""
    started = time.perf_counter()
    door = choose(arguments.allocator, os.environ)
    if arguments.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with CardMemory(0) as card:
        import torch

        served_by = enable(torch, door)
        torch.manual_seed(SEED)
        if arguments.deterministic:
            make_deterministic(torch)
        torch.zeros(1, device="cuda")
        ready = time.perf_counter()
        row = measure(torch, arguments.workload, arguments.steps)
    row |= statistics(torch, served_by is not None)
    if served_by is not None:
        row["door"] = served_by
    row["card"] = None if card.peak is None else vars(card.peak)
    row["startup_s"] = round(ready - started, 2)
    row["run_s"] = round(sum(row["step_ms"][1:]) / 1e3, 4)  # the first one makes the model
    row["machine"] = machine(torch)
    return row


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--allocator", required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--deterministic", action="store_true")
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or WORKLOADS[arguments.workload].steps
    row = vars(arguments) | run(arguments)
    print("ROW " + json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
