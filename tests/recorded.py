"""Where the recorded traces are: two lie in the repository, all seven where a variable says."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "benchmarks" / "traces"
RECORDED = Path(os.environ.get("GPUMEM_ALLOC_TRACES", ROOT.parent / "shared" / "traces"))

# Peaks in MiB: live, and what PyTorch reserved by default and with expandable segments.
PEAKS_MIB = {
    "gpt2_varlen": (16145, 26268, 17252),
    "bert_dynpad": (12514, 22694, 13674),
    "llama_lora_ckpt": (5075, 9332, 5674),
    "llama_generate": (1419, 1850, 1520),
    "prefetch_train": (4590, 14644, 5748),
    "gnn": (14170, 53168, 14988),
    "diffusion_multires": (1307, 2640, 1706),
}
BUNDLED_NAMES = ("gnn", "prefetch_train")
OTHER_NAMES = tuple(name for name in PEAKS_MIB if name not in BUNDLED_NAMES)


def trace_path(name: str) -> Path:
    """The file of a recorded trace."""
    folder = BUNDLED if name in BUNDLED_NAMES else RECORDED
    return folder / f"{name}.pickle.gz"


HAS_TRACES = all(trace_path(name).is_file() for name in PEAKS_MIB)
