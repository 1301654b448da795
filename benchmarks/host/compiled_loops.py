"""Compiles the benchmarks' C++ loops against the torch that is installed.

Needs g++ and CUDA's headers: a toolkit's, or the wheels nvidia-cuda-runtime and nvidia-cuda-crt.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
LAST_HEADER = "crt/host_defines.h"  # PyTorch's own wheels lack it


class CompilationError(Exception):
    """The loops cannot be compiled here; the text says what happened, why, and what to do."""


def cuda_include() -> Path:
    """Return the folder with CUDA's headers. Raises CompilationError if there is none."""
    homes = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    candidates = [Path(home) / "include" for home in [*filter(None, homes), "/usr/local/cuda"]]
    spec = importlib.util.find_spec("nvidia")
    for place in list(spec.submodule_search_locations or []) if spec else []:
        candidates += sorted(Path(place).glob("*/include"))
    for folder in candidates:
        if (folder / LAST_HEADER).is_file():
            return folder
    raise CompilationError(
        f"{LAST_HEADER} is in none of {', '.join(map(str, candidates))}.\n"
        "The loops are compiled against PyTorch's headers, which include it.\n"
        "Install a CUDA toolkit, or the wheel nvidia-cuda-crt."
    )


def compile_loops(name: str, folder: Path, sources: Path = HERE) -> Path:
    """Compile NAME.cpp of the folder `sources` to a library in `folder`.

    Raises CompilationError.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise CompilationError(
            "torch is not installed.\nThe loops run inside of it.\nInstall a CUDA build of torch."
        )
    torch = Path(spec.submodule_search_locations[0])
    library = folder / f"{name}.so"
    command = [
        *("g++", "-std=c++20", "-O2", "-fPIC", "-shared", str(sources / f"{name}.cpp")),
        *(f"-isystem{torch / 'include'}", f"-isystem{cuda_include()}"),
        *("-o", str(library), f"-L{torch / 'lib'}", "-lc10", "-lc10_cuda"),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
    except FileNotFoundError:
        raise CompilationError(
            "g++ was not found.\nThe loops are C++, compiled on this machine.\nInstall g++ 10 or "
            "newer."
        ) from None
    except subprocess.CalledProcessError as failure:
        first = next((line for line in failure.stderr.splitlines() if "error" in line), "")
        raise CompilationError(
            f"g++ could not compile {name}.cpp: {first}\n"
            f"It was compiled against the headers of {torch}.\n"
            "Report it with the versions of torch and g++."
        ) from None
    return library
