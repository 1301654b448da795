"""On what a benchmark runs: the card, its driver and state, and the versions of everything.

    environment()   # {"gpu": "NVIDIA H200", "driver": ..., "torch": ..., "git_id": ..., ...}

It is asked for in a process of its own, so that nothing of CUDA starts in the one that asks. What
nobody tells is None. No name of the machine or its user is in it, and no path.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpumem_alloc
from gpumem_alloc import _C

from ..allocators import RMM_WHEELS
from .card_memory import nvml_handle
from .children import command
from .process import child_environment

SECONDS = 60
LIBRARIES = (
    "transformers", "peft", "timm", "torchvision", "torch_geometric", "numpy", "triton",
    *RMM_WHEELS[:2], "nvidia-ml-py",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Return the block; only what needs no card if the process for it fails."""
    try:
        done = subprocess.run(
            command("workers.environment"), env=child_environment("native"), capture_output=True,
            text=True, errors="replace", timeout=SECONDS, check=True,
        )  # fmt: skip
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        print(f"environment: the card was not asked: {error}", file=sys.stderr)
        return card({}) | software()


def software() -> dict[str, Any]:
    """Return versions, and what the machine is beside its card."""
    return {
        **torch_versions(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "gpumem_alloc": gpumem_alloc.__version__,
        "git_id": os.environ.get("GMA_GIT_ID") or _C.git_id,
        "libraries": {name: found for name in LIBRARIES if (found := version(name))},
    }


def torch_versions() -> dict[str, str | None]:
    """Return torch's version and that of its CUDA, without importing it."""
    spec = importlib.util.find_spec("torch")
    for place in list(spec.submodule_search_locations or []) if spec else []:
        with contextlib.suppress(OSError):
            found = runpy.run_path(str(Path(place) / "version.py"))
            return {"torch": found.get("__version__"), "cuda": found.get("cuda")}
    return {"torch": None, "cuda": None}


def version(name: str) -> str | None:
    """Return the version of what pip installed under a name."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def card(questions: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Ask each question about the card; None where it has no answer."""
    fields = (
        "gpu", "gpu_bytes", "driver", "sm_clock_mhz", "memory_clock_mhz", "max_sm_clock_mhz",
        "max_memory_clock_mhz", "power_limit_w", "temperature_c", "persistence", "mig", "ecc",
        "used_bytes", "other_processes",
    )  # fmt: skip
    found: dict[str, Any] = dict.fromkeys(fields)
    for name in fields:
        with contextlib.suppress(Exception):  # of NVML's many kinds: it is not told here
            found[name] = questions[name]()
    return found


def nvml_questions(device: int) -> dict[str, Callable[[], Any]]:
    """Return what NVML can be asked; nothing where there is no NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = nvml_handle(pynvml, device)
    except Exception as error:  # pynvml missing, or no NVML behind it
        print(f"environment: NVML is not to be asked: {error}", file=sys.stderr)
        return {}
    sm, memory = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    return {
        "gpu": lambda: str(pynvml.nvmlDeviceGetName(handle)),
        "gpu_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        "driver": lambda: str(pynvml.nvmlSystemGetDriverVersion()),
        "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, sm),
        "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, memory),
        "max_sm_clock_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, sm),
        "max_memory_clock_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, memory),
        "power_limit_w": lambda: pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000,
        "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(
            handle, pynvml.NVML_TEMPERATURE_GPU
        ),
        "persistence": lambda: bool(pynvml.nvmlDeviceGetPersistenceMode(handle)),
        "mig": lambda: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]),
        "ecc": lambda: bool(pynvml.nvmlDeviceGetEccMode(handle)[0]),
        "used_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used),
        "other_processes": lambda: len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
    }


def driver_questions(device: int) -> dict[str, Callable[[], Any]]:
    """Return what the driver can be asked without a context; its bytes are those one can have."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    number = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(number), device):
        return {}

    def name() -> str:
        text = ctypes.create_string_buffer(256)
        if driver.cuDeviceGetName(text, len(text), number):
            raise OSError("cuDeviceGetName failed")
        return text.value.decode()

    def total_bytes() -> int:
        total = ctypes.c_size_t()
        if driver.cuDeviceTotalMem_v2(ctypes.byref(total), number):
            raise OSError("cuDeviceTotalMem failed")
        return total.value

    return {"gpu": name, "gpu_bytes": total_bytes}


def main() -> None:
    """Print the block as one line of JSON."""
    block = card(nvml_questions(0) | driver_questions(0)) | software()
    print(json.dumps(block), flush=True)


if __name__ == "__main__":
    main()
