"""Kernels that compute an index from the wrong shape or stride."""

from __future__ import annotations

from typing import Any

from tests.gpu.known_bugs.kernels import Kernels
from tests.gpu.known_bugs.table import Result, case

SOURCE = r"""
extern "C" __global__ void copy_rows(float* out, int out_pitch, const float* in, int in_pitch,
                                     int columns) {
    const int row = blockIdx.x;
    const int column = threadIdx.x;
    if (column >= columns) { return; }
#if WRONG
    out[row * in_pitch + column] = in[row * in_pitch + column];
#else
    out[row * out_pitch + column] = in[row * in_pitch + column];
#endif
}

extern "C" __global__ void number_rows(float* out, int rows, int columns) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
#if WRONG
    if (row < columns && column < rows) {
#else
    if (row < rows && column < columns) {
#endif
        out[row * columns + column] = row;
    }
}

extern "C" __global__ void window_sums(float* out, const float* in, int windows, int length,
                                       int hop) {
    const int window = blockIdx.x * blockDim.x + threadIdx.x;
    if (window >= windows) { return; }
    float sum = 0;
    for (int i = 0; i < length; ++i) { sum += in[window * hop + i]; }
    out[window] = sum;
}

extern "C" __global__ void fill_bytes(unsigned char* out, int value, long long n) {
#if WRONG
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#else
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
#endif
    if (i < n) { out[i] = static_cast<unsigned char>(value); }
}
"""


@case(
    mistake="the padded source's leading dimension is used for the compact destination",
    signal="fault",
    packed="always",
)
def wrong_leading_dimension(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    rows, columns, pitch = 128, 128, 160
    x = torch.ones(rows, pitch).cuda()
    out = torch.zeros(rows, columns).cuda()
    kernels.launch("copy_rows", rows, columns, out, columns, x, pitch, columns)
    return Result(out.cpu(), torch.ones(rows, columns))


@case(
    mistake="rows and columns are swapped in the bound check of a kernel",
    signal="fault",
    packed="always",
)
def swapped_rows_and_columns(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    rows, columns = 64, 256
    out = torch.zeros(rows, columns).cuda()
    kernels.launch("number_rows", (columns // 16, columns // 16), (16, 16), out, rows, columns)
    return Result(out.cpu(), torch.arange(rows).float()[:, None].expand(rows, columns))


@case(
    mistake="overlapping windows are counted by their stride, and the last one leaves the tensor",
    signal="fault",
    packed="always",
)
def last_window_leaves(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    count, length, hop = 4096, 128, 64
    windows = count // hop if wrong else (count - length) // hop + 1
    x = torch.ones(count).cuda()
    out = torch.zeros(windows).cuda()
    kernels.launch("window_sums", 1, 256, out, x, windows, length, hop)
    return Result(out.cpu(), torch.full((63,), 128.0))


# What lies two GiB before the tensor is chance without guards; mostly it is nothing.
@case(
    mistake="an index of a large tensor is kept in 32 bits, and becomes negative",
    signal="fault",
    native="sometimes",
    stream="sometimes",
    packed="sometimes",
    card_only=True,
)
def index_overflow(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    count = (1 << 31) + (1 << 28)
    out = torch.empty(count, dtype=torch.uint8, device="cuda")
    kernels.launch("fill_bytes", count // 1024, 1024, out, 7, count)
    return Result(out[-256:].cpu(), torch.full((256,), 7, dtype=torch.uint8))
