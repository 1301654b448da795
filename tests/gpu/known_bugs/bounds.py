"""Kernels that write past the end of a tensor."""

from __future__ import annotations

from typing import Any

from tests.gpu.known_bugs.kernels import Kernels
from tests.gpu.known_bugs.table import Result, case

SOURCE = r"""
extern "C" __global__ void twice(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if WRONG
    if (i <= n) {
#else
    if (i < n) {
#endif
        out[i] = 2 * in[i];
    }
}

extern "C" __global__ void fill(float* out, float value, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if !WRONG
    if (i >= n) { return; }
#endif
    out[i] = value;
}

extern "C" __global__ void twice_by_four(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if WRONG
    const int fours = (n + 3) / 4;
#else
    const int fours = n / 4;
    const int rest = 4 * fours + i;
    if (rest < n) { out[rest] = 2 * in[rest]; }
#endif
    if (i < fours) {
        float4 four = reinterpret_cast<const float4*>(in)[i];
        four.x *= 2; four.y *= 2; four.z *= 2; four.w *= 2;
        reinterpret_cast<float4*>(out)[i] = four;
    }
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
    x = torch.arange(FLOATS, dtype=torch.float32).cuda()
    out = torch.zeros_like(x)
    kernels.launch("twice", FLOATS // 256 + 1, 256, out, x, FLOATS)
    return Result(out.cpu(), 2 * torch.arange(FLOATS, dtype=torch.float32))


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


# If it only copied, it would copy one tensor's pattern onto the other's, and nothing would change.
@case(
    mistake="a kernel that takes four floats at a time writes four at a tail of two",
    signal="violation",
    packed="always",
)
def vector_tail(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    count = FLOATS - 2
    x = torch.arange(count, dtype=torch.float32).cuda()
    out = torch.zeros_like(x)
    kernels.launch("twice_by_four", FLOATS // 4 // 256, 256, out, x, count)
    return Result(out.cpu(), 2 * torch.arange(count, dtype=torch.float32))


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
