"""What there is to attack here; asked in a process of its own, since it starts CUDA.

    python -m gpumem_alloc.verify.probe OPTIONS-AS-JSON

Prints one line of JSON: {"torch", "cards", "name", "why"}. Without cards `why` says what is
missing. Where there are some, the bridge has been built afterwards, once for all attacks.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
from typing import Any

from gpumem_alloc.verify.children import environment

SECONDS = 300


def probe(options: dict[str, object]) -> dict[str, Any]:
    """Return what main() prints, as this process's child finds it."""
    command = [sys.executable, "-m", "gpumem_alloc.verify.probe", json.dumps(options)]
    why = f"the look for a GPU took more than {SECONDS} s"
    try:
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, check=False, timeout=SECONDS
        )  # fmt: skip
        lines = done.stdout.splitlines()
        if done.returncode == 0 and lines:
            return dict(json.loads(lines[-1]))
        why = f"the look for a GPU ended with exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        pass
    has_torch = importlib.util.find_spec("torch") is not None
    return {"torch": has_torch, "cards": 0, "name": "", "why": why}


def card_count() -> int:
    """Ask the driver, if there is one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def look(options: dict[str, object]) -> dict[str, Any]:
    """Look for cards, and put ours into torch once."""
    found: dict[str, Any] = {"torch": importlib.util.find_spec("torch") is not None}
    cards = card_count()
    if cards == 0 or not found["torch"]:
        why = "no GPU" if cards == 0 else "a GPU, but no torch to use it"
        return {**found, "cards": 0, "name": "", "why": why}
    import torch

    import gpumem_alloc

    try:
        gpumem_alloc.enable(**options)  # type: ignore[arg-type]
        torch.zeros(1).cuda()
        name = torch.cuda.get_device_name()
    except Exception as error:  # whatever it is, the card cannot be used
        why = f"a GPU that cannot be used: {error}".partition("\n")[0]
        return {**found, "cards": 0, "name": "", "why": why}
    return {**found, "cards": torch.cuda.device_count(), "name": name, "why": ""}


if __name__ == "__main__":
    print(json.dumps(look(json.loads(sys.argv[1]))), flush=True)
