"""Kernels that write past the end of a tensor."""

from __future__ import annotations

from typing import Any

from tests.gpu.known_bugs.kernels import Kernels
from tests.gpu.known_bugs.table import Result, case

SOURCE = r"""
extern "C" __global__ void count_up(float* out, float first, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if WRONG
    if (i <= n) {
#else
    if (i < n) {
#endif
        out[i] = first + i;
    }
}

extern "C" __global__ void fill(float* out, float value, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if !WRONG
    if (i >= n) { return; }
#endif
    out[i] = value;
}

extern "C" __global__ void fill_by_four(float* out, float value, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if WRONG
    const int fours = (n + 3) / 4;
#else
    const int fours = n / 4;
    const int rest = 4 * fours + i;
    if (rest < n) { out[rest] = value; }
#endif
    if (i < fours) { reinterpret_cast<float4*>(out)[i] = {value, value, value, value}; }
}

extern "C" __global__ void part_sums(float* sums, const float* in, int part, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = i * part; k < (i + 1) * part && k < n; ++k) { sum += in[k]; }
    sums[i] = sum;
}
"""

# A multiple of 512 bytes, so that nothing lies between a tensor's end and its guard.
FLOATS = 4096


@case(
    mistake="the bound check of a kernel is `<=` in place of `<`",
    signal="fault",
    packed="always",
)
def less_or_equal(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    out = torch.zeros(FLOATS).cuda()
    kernels.launch("count_up", FLOATS // 256 + 1, 256, out, 1.0, FLOATS)
    return Result(out.cpu(), 1 + torch.arange(FLOATS, dtype=torch.float32))


# The grid's last threads write what the allocator rounds the size up to; no guard is that near.
@case(
    mistake="a grid rounded up to whole blocks, and no bound check at all",
    signal="violation",
    packed="always",
)
def no_bound_check(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    count = 1000
    out = torch.zeros(count).cuda()
    kernels.launch("fill", (count + 255) // 256, 256, out, 7.0, count)
    return Result(out.cpu(), torch.full((count,), 7.0))


@case(
    mistake="a kernel that takes four floats at a time writes four at a tail of two",
    signal="violation",
    packed="always",
)
def vector_tail(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    count = FLOATS - 2
    out = torch.zeros(count).cuda()
    kernels.launch("fill_by_four", FLOATS // 4 // 256, 256, out, 7.0, count)
    return Result(out.cpu(), torch.full((count,), 7.0))


@case(
    mistake="a reduction is launched with one block more than there are places for partial sums",
    signal="fault",
    packed="always",
)
def one_block_too_many(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    parts = 128  # 512 bytes of sums
    x = torch.ones(parts * 256).cuda()
    sums = torch.zeros(parts).cuda()
    blocks = parts // 32 + (1 if wrong else 0)
    kernels.launch("part_sums", blocks, 32, sums, x, 256, x.numel())
    return Result(sums.cpu(), torch.full((parts,), 256.0))
