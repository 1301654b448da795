"""Where CUDA's headers and runtime library may be, and which of them fit a torch.

torch's own wheels bring both, but not the headers' folder crt/, which is a wheel of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpumem_alloc.bridge.errors import BridgeError
from gpumem_alloc.bridge.facts import TorchFacts

HEADERS = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h")
_WHEELS = "torch's nvidia wheels"


@dataclass(frozen=True)
class Cuda:
    """Headers and a runtime library of one major version."""

    includes: tuple[Path, ...]
    runtime: Path
    version: str  # that of cuda.h: 13.0
    place: str

    def __str__(self) -> str:
        return f"CUDA {self.version} from {self.place}: {', '.join(map(str, self.includes))}"


@dataclass(frozen=True)
class _Place:
    name: str
    includes: tuple[Path, ...]
    libraries: tuple[Path, ...]

    def header(self, name: str) -> Path | None:
        return next((path / name for path in self.includes if (path / name).is_file()), None)

    @property
    def missing(self) -> list[str]:
        return [name for name in HEADERS if self.header(name) is None]

    @property
    def version(self) -> tuple[int, int] | None:
        """That of cuda.h, or None without one that states it."""
        header = self.header("cuda.h")
        text = header.read_text(errors="replace") if header else ""
        match = re.search(r"^\s*#\s*define\s+CUDA_VERSION\s+(\d+)", text, re.MULTILINE)
        return (int(match[1]) // 1000, int(match[1]) % 1000 // 10) if match else None

    @property
    def used(self) -> tuple[Path, ...]:
        """The folders that the headers were found in."""
        found = (
            next(path for path in self.includes if (path / name).is_file()) for name in HEADERS
        )
        return tuple(dict.fromkeys(found))


def find(facts: TorchFacts) -> Cuda:
    """Return the first place that has all and fits, or raise BridgeError with what is missing."""
    faults: list[str] = []
    for place in _places(facts):
        version = place.version
        if len(place.missing) == len(HEADERS):
            continue
        if version is not None and version[0] != facts.cuda_major:
            faults.append(f"{place.name} is CUDA {version[0]}.{version[1]}")
        elif place.missing:
            faults.append(f"{place.name}: no {', no '.join(place.missing)}")
        elif version is None:
            faults.append(f"{place.header('cuda.h')} states no CUDA_VERSION")
        else:
            text = f"{version[0]}.{version[1]}"
            return Cuda(place.used, _runtime(facts), text, place.name)
    raise _missing(facts, faults)


def _runtime(facts: TorchFacts) -> Path:
    """The library by its versioned name; torch's own first, since that is the one in use."""
    name = f"libcudart.so.{facts.cuda_major}"
    for place in (_wheel_place(facts), *_places(facts)):
        for folder in place.libraries:
            if (folder / name).exists():
                return folder / name
    raise BridgeError(
        f"{name} was not found, which the bridge is linked to.",
        "Neither torch's nvidia wheels nor a CUDA toolkit has it.",
        f"Set CUDA_HOME to a toolkit of CUDA {facts.cuda_major}.",
    )


def _missing(facts: TorchFacts, faults: list[str]) -> BridgeError:
    major = facts.cuda_major
    # Before 13, each CUDA major had wheels of its own name, and crt/ came with the compiler's.
    crt = "nvidia-cuda-crt" if major >= 13 else f"nvidia-cuda-nvcc-cu{major}"
    runtime = "nvidia-cuda-runtime" if major >= 13 else f"nvidia-cuda-runtime-cu{major}"
    only_crt = any(text == f"{_WHEELS}: no {HEADERS[2]}" for text in faults)
    wheels = [crt] if only_crt else [runtime, crt]
    command = " ".join(f'"{wheel}=={facts.cuda}.*"' for wheel in wheels)
    return BridgeError(
        f"CUDA {major}'s headers were not found, which the bridge is compiled with.",
        f"{'; '.join(faults) or 'No CUDA toolkit and no nvidia wheel was found'}.",
        f"Run: {sys.executable} -m pip install {command}   (or set CUDA_HOME to a toolkit of "
        f"CUDA {major}).",
    )


def _places(facts: TorchFacts) -> Iterator[_Place]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield _toolkit(f"{name} ({os.environ[name]})", Path(os.environ[name]))
    yield _wheel_place(facts)
    for root in _usual_roots(facts):
        yield _toolkit(str(root), root)


def _usual_roots(facts: TorchFacts) -> list[Path]:
    """Where toolkits are installed."""
    nvcc = shutil.which("nvcc")
    roots = [Path("/usr/local/cuda"), Path(f"/usr/local/cuda-{facts.cuda}"), Path("/opt/cuda")]
    roots += [Path(nvcc).resolve().parent.parent] if nvcc else []
    return list(dict.fromkeys([*roots, Path(sys.prefix), Path("/usr")]))


def _toolkit(name: str, root: Path) -> _Place:
    targets = sorted(root.glob("targets/*-linux"))
    includes = [root / "include", *(target / "include" for target in targets)]
    libraries = [root / "lib64", root / "lib", *(target / "lib" for target in targets)]
    libraries += sorted((root / "lib").glob("*-linux-gnu"))
    return _Place(name, tuple(includes), tuple(libraries))


def _wheel_place(facts: TorchFacts) -> _Place:
    major = facts.cuda_major
    parts = [f"cu{major}"] if major >= 13 else ["cuda_runtime", "cuda_nvcc"]
    roots = [folder / part for folder in _nvidia_folders(facts) for part in parts]
    return _Place(
        _WHEELS, tuple(root / "include" for root in roots), tuple(root / "lib" for root in roots)
    )


def _nvidia_folders(facts: TorchFacts) -> list[Path]:
    """The wheels' common folder, beside torch and wherever else packages are found."""
    spec = importlib.util.find_spec("nvidia")
    found = [Path(place) for place in (spec.submodule_search_locations or [] if spec else [])]
    return list(dict.fromkeys([facts.root.parent / "nvidia", *found]))
