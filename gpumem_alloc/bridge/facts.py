"""What the build has to know of an installed torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumem_alloc.bridge.errors import BridgeError

# CUDAAllocator has had the virtual methods that the bridge overrides since then.
OLDEST = (2, 11)


@dataclass(frozen=True)
class TorchFacts:
    """One installed torch."""

    version: str  # as torch.__version__ has it, with its build: 2.14.1+cu130
    cuda: str | None  # 13.0; None in a build without CUDA
    root: Path  # the package's folder
    cxx11_abi: bool = True

    @property
    def release(self) -> str:
        """The version without its build, as torch's headers have it."""
        return self.version.partition("+")[0]

    @property
    def minor(self) -> tuple[int, int]:
        """(2, 14), also of 2.14.0a0+git1234."""
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)

    @property
    def cuda_major(self) -> int:
        """13; 0 in a build without CUDA."""
        return int((self.cuda or "0").partition(".")[0])

    @property
    def include(self) -> Path:
        """The folder of torch's headers."""
        return self.root / "include"

    @property
    def lib(self) -> Path:
        """The folder of torch's libraries."""
        return self.root / "lib"


def of_module(torch: Any) -> TorchFacts:
    """Return the facts of an imported torch."""
    return TorchFacts(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        root=Path(torch.__file__).resolve().parent,
        cxx11_abi=bool(torch.compiled_with_cxx11_abi()),
    )


def of_folder(root: Path) -> TorchFacts:
    """Return the facts of a torch that lies in a folder, without importing it."""
    text = (root / "version.py").read_text()
    version = re.search(r"^__version__ = '(.+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b.*= '(.+)'", text, re.MULTILINE)
    if version is None:
        raise ValueError(f"{root / 'version.py'} has no __version__")
    return TorchFacts(version[1], cuda[1] if cuda else None, root)


def require_supported(facts: TorchFacts) -> None:
    """Raise BridgeError for a torch that no bridge can serve."""
    if facts.cuda is None:
        raise BridgeError(
            f"torch {facts.version} is a build without CUDA.",
            "The bridge is a subclass of PyTorch's CUDA allocator.",
            "Install a CUDA build, see https://pytorch.org/get-started/locally/.",
        )
    if facts.minor < OLDEST:
        raise BridgeError(
            f"torch {facts.version} is too old for the bridge.",
            "The bridge overrides methods that PyTorch's allocator has had since 2.11.",
            'Update it: python -m pip install "torch>=2.11".',
        )
