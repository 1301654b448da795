"""The C entry points fit torch's own function types, as torch's headers state them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.build import cuda_include

pytestmark = pytest.mark.torch

SOURCE = """
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>
#include "torch/stock_door.h"

void hand_over() {
    namespace pluggable = torch::cuda::CUDAPluggableAllocator;
    auto ours = std::dynamic_pointer_cast<pluggable::CUDAPluggableAllocator>(
        pluggable::createCustomAllocator(gma_malloc, gma_free));
    ours->set_init_fn(gma_init);
    ours->set_reset_fn(gma_reset);
    ours->set_memory_fraction_fn(gma_memory_fraction);
    ours->set_base_alloc_fn(gma_base_alloc);
    ours->set_record_stream_fn(gma_record_stream);
    ours->set_begin_allocate_to_pool(gma_begin_allocate_to_pool);
    ours->set_end_allocate_to_pool_fn(gma_end_allocate_to_pool);
    ours->set_release_pool(gma_release_pool);
}
static_assert(std::is_same_v<gma::TorchStream, cudaStream_t>);
static_assert(std::is_same_v<gma::TorchPool, c10::cuda::MempoolId_t>);
static_assert(std::is_same_v<gma::TorchFilter, std::function<bool(cudaStream_t)>>);
"""


def test_entry_points_fit_torchs_headers(root: Path, tmp_path: Path) -> None:
    where = "import torch; print(torch.__path__[0])"
    torch = subprocess.check_output([sys.executable, "-c", where], text=True).strip()
    # Ours is quoted and torch's is not, so both folders called "torch" are found.
    source = tmp_path / "types.cpp"
    source.write_text(SOURCE)
    include = [f"-isystem{torch}/include", *(f"-isystem{path}" for path in cuda_include())]
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-iquote{root}/csrc", *include, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
