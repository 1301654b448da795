"""Builds the stand-in CUDA libraries; what is built is kept by the hash of its sources."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_FLAGS = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
_LAST_HEADER = "crt/host_defines.h"  # a wheel of its own: whoever has it has cuda.h too
_CSRC = _HERE.parent.parent / "csrc"  # for what our kernels' parameters look like
_STATE = ["settings.cpp", "calls.cpp", "memory.cpp", "timeline.cpp", "kernels.cpp", "control.cpp"]
_RUNTIME = ["runtime_memory.cpp", "runtime_streams.cpp", "runtime_sharing.cpp"]


@dataclass(frozen=True)
class Rig:
    """Where the built libraries are."""

    folder: Path

    @property
    def preload(self) -> Path:
        """The library for LD_PRELOAD: the state and the runtime's functions."""
        return self.folder / "librig.so"


def cuda_include() -> list[Path]:
    """Folders with cuda.h and cuda_runtime_api.h: a toolkit's, else those of the nvidia wheels.

    Raises FileNotFoundError when there is neither.
    """
    candidates = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    spec = importlib.util.find_spec("nvidia")
    for place in list(spec.submodule_search_locations or []) if spec else []:
        candidates += sorted(Path(place).glob("*/include"))
    found = [folder for folder in candidates if (folder / _LAST_HEADER).is_file()]
    if not found:
        raise FileNotFoundError(
            f"no {_LAST_HEADER} in {', '.join(map(str, candidates))}: the rig is built against"
            " CUDA's headers; install a toolkit, or the wheels nvidia-cuda-runtime and"
            " nvidia-cuda-crt"
        )
    return found[:1]


def build(cache: Path | None = None) -> Rig:
    """The rig, built if these sources were not built before.

    Raises subprocess.CalledProcessError, with the compiler's text on stderr, if it fails.
    """
    sources = sorted(_HERE.glob("*.cpp")) + sorted(_HERE.glob("*.h")) + [Path(__file__)]
    sources += sorted((_CSRC / "kernels").glob("*.h"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    root = cache or Path(tempfile.gettempdir()) / f"gpumem_alloc-rig-{os.getuid()}"
    folder = root / digest
    if not folder.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as made:
            _build_into(Path(made) / "rig")
            try:
                (Path(made) / "rig").rename(folder)
            except OSError:  # another process was first
                if not folder.is_dir():
                    raise
    return Rig(folder)


def _build_into(folder: Path) -> None:
    folder.mkdir()
    include = [f"-I{path}" for path in [*cuda_include(), _CSRC]]
    state = [str(_HERE / name) for name in _STATE + _RUNTIME]
    command = ["g++", *_FLAGS, *include]
    subprocess.run(
        [*command, *state, "-Wl,-soname,librig.so", "-o", str(folder / "librig.so"), "-ldl"],
        check=True,
    )
    driver = ["driver.cpp", "driver_work.cpp"]
    for sources, name in [(driver, "libcuda.so.1"), (["nvml.cpp"], "libnvidia-ml.so.1")]:
        subprocess.run(
            [
                *command,
                *[str(_HERE / source) for source in sources],
                f"-Wl,-soname,{name}",
                "-Wl,-rpath,$ORIGIN",
                "-o",
                str(folder / name),
                f"-L{folder}",
                "-lrig",
                "-ldl",
            ],
            check=True,
        )


if __name__ == "__main__":
    print(build().folder)
