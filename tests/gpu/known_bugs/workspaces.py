"""Buffers that are too small, or that hold what nobody put there."""

from __future__ import annotations

from typing import Any

from tests.gpu.known_bugs.kernels import Kernels
from tests.gpu.known_bugs.table import Result, case

SOURCE = r"""
extern "C" __global__ void histogram(int* counts, const float* values, int bins, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    int bin = static_cast<int>(values[i] * bins);
#if !WRONG
    if (bin == bins) { bin = bins - 1; }
#endif
    atomicAdd(&counts[bin], 1);
}

extern "C" __global__ void offsets_of_counts(int* offsets, const int* counts, int n) {
    offsets[0] = 0;
    for (int i = 0; i < n; ++i) { offsets[i + 1] = offsets[i] + counts[i]; }
}

extern "C" __global__ void sum_of_bytes(int* sum, const unsigned char* text, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if WRONG
    if (i <= n) { atomicAdd(sum, text[i]); }
#else
    if (i < n) { atomicAdd(sum, text[i]); }
#endif
}

extern "C" __global__ void accumulate(float* sum, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { sum[i] += in[i]; }
}
"""

FLOATS = 4096


@case(
    mistake="a histogram puts the largest value into a bin behind the last",
    signal="fault",
    packed="always",
)
def histogram_top_bin(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    bins = 128  # 512 bytes
    values = torch.arange(FLOATS + 1) / FLOATS  # 0 to 1, both of them
    counts = torch.zeros(bins, dtype=torch.int32).cuda()
    kernels.launch("histogram", FLOATS // 256 + 1, 256, counts, values.cuda(), bins, FLOATS + 1)
    expected = torch.full((bins,), FLOATS // bins, dtype=torch.int32)
    expected[-1] += 1
    return Result(counts.cpu(), expected)


@case(
    mistake="a workspace that two operators share lacks the last element that the second needs",
    signal="fault",
    packed="always",
)
def shared_workspace_too_small(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    blocks = 128  # the first operator's counts; 512 bytes
    counts = torch.ones(blocks, dtype=torch.int32).cuda()
    workspace = torch.zeros(blocks if wrong else blocks + 1, dtype=torch.int32).cuda()
    kernels.launch("offsets_of_counts", 1, 1, workspace, counts, blocks)
    return Result(workspace[:blocks].cpu(), torch.arange(blocks, dtype=torch.int32))


# Bytes have no NaN, so only a guard right behind the last one shows that the next was read.
@case(
    mistake="a kernel reads one byte past a text whose length is no multiple of 512",
    signal="fault",
    packed="never",
    options={"guard_alignment": 16},
)
def text_one_byte_past(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    count = 4000  # a multiple of 16
    text = torch.ones(count, dtype=torch.uint8).cuda()
    total = torch.zeros(1, dtype=torch.int32).cuda()
    kernels.launch("sum_of_bytes", count // 256 + 1, 256, total, text, count)
    return Result(total.cpu(), torch.tensor([count], dtype=torch.int32))


def leave_something_behind(torch: Any) -> None:
    """Free memory that holds ones, for the next tensor of its size to get."""
    torch.ones(FLOATS).cuda()


def blank(torch: Any, shape: tuple[int, ...], wrong: bool) -> Any:
    """Make a tensor of zeros; wrongly, of whatever is there."""
    return torch.empty(shape, device="cuda") if wrong else torch.zeros(shape).cuda()


@case(
    mistake="a kernel adds to an output that was never set to zero",
    signal="poison",
    packed="always",
)
def relies_on_zeroed_memory(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    x = torch.full((FLOATS,), 3.0).cuda()
    leave_something_behind(torch)
    total = blank(torch, (FLOATS,), wrong)
    kernels.launch("accumulate", FLOATS // 256, 256, total, x, FLOATS)
    return Result(total.cpu(), torch.full((FLOATS,), 3.0))


@case(
    mistake="sequences are put into torch.empty, and the mean runs over their padding too",
    signal="poison",
    packed="always",
)
def padding_never_written(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    rows, longest = 8, FLOATS // 8
    leave_something_behind(torch)
    batch = blank(torch, (rows, longest), wrong)
    for row in range(rows):
        length = 64 * row
        batch[row, :length].copy_(torch.full((length,), 2.0))
    expected = torch.arange(rows) * 64 * 2.0 / longest
    return Result(batch.cpu().mean(dim=1), expected)
