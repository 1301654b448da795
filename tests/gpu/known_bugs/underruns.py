"""Kernels that use memory before the first element.

A tensor lies at the end of its pages, so before it is a gap that holds the pattern: what is read
there is NaN, and what is written is found at the free. (With guard=lower both fault at once.) In
each case another tensor lies before it, where native and `stream` let the mistake land.
"""

from __future__ import annotations

from typing import Any

from tests.gpu.known_bugs.kernels import Kernels
from tests.gpu.known_bugs.table import Result, case

SOURCE = r"""
extern "C" __global__ void sum_of_three(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if WRONG
    if (i < n - 1) {
#else
    if (i > 0 && i < n - 1) {
#endif
        out[i] = in[i - 1] + in[i] + in[i + 1];
    }
}

extern "C" __global__ void drop_first(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
#if !WRONG
    if (i == 0) { return; }
#endif
    if (i < n) { out[i - 1] = in[i]; }
}

extern "C" __global__ void count_slots(int* counts, const int* keys, int slots, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    int slot = keys[i] % slots;
#if !WRONG
    if (slot < 0) { slot += slots; }
#endif
    atomicAdd(&counts[slot], 1);
}

extern "C" __global__ void gather_rows(float* out, const float* table, const int* ids,
                                       int columns) {
    const int id = ids[blockIdx.x];
    const int column = threadIdx.x;
#if WRONG
    out[blockIdx.x * columns + column] = table[id * columns + column];
#else
    out[blockIdx.x * columns + column] = id < 0 ? 0 : table[id * columns + column];
#endif
}
"""

FLOATS = 4096


@case(
    mistake="a stencil checks its upper neighbour only, and reads index -1",
    signal="poison",
    packed="always",
)
def stencil_reads_before(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    before = torch.ones(FLOATS).cuda()
    x = torch.ones(FLOATS).cuda()
    out = torch.zeros(FLOATS).cuda()
    kernels.launch("sum_of_three", FLOATS // 256, 256, out, x, FLOATS)
    del before
    expected = torch.full((FLOATS,), 3.0)
    expected[0] = expected[-1] = 0
    return Result(out.cpu(), expected)


# In `packed` what lies before is another tensor's redzone, or free memory, which nobody checks.
@case(
    mistake="elements move down by one, the first to index -1",
    signal="violation",
    packed="sometimes",
)
def shift_writes_before(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    x = torch.ones(FLOATS).cuda()
    before = torch.zeros(FLOATS).cuda()
    out = torch.zeros(FLOATS).cuda()
    kernels.launch("drop_first", FLOATS // 256, 256, out, x, FLOATS)
    expected = torch.ones(2 * FLOATS)
    expected[:FLOATS] = expected[-1] = 0
    return Result(torch.cat([before.cpu(), out.cpu()]), expected)


@case(
    mistake="a hash table takes the remainder of a negative key for a slot",
    signal="violation",
    packed="sometimes",
)
def negative_remainder(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    slots = FLOATS
    keys = torch.arange(-slots, slots, dtype=torch.int32).cuda()
    before = torch.zeros(slots, dtype=torch.int32).cuda()
    counts = torch.zeros(slots, dtype=torch.int32).cuda()
    kernels.launch("count_slots", 2 * slots // 256, 256, counts, keys, slots, 2 * slots)
    del before
    return Result(counts.cpu(), torch.full((slots,), 2, dtype=torch.int32))


@case(
    mistake="a gather takes the id -1, which marks padding, for a row",
    signal="poison",
    packed="always",
)
def gather_negative_id(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    rows, columns = 256, 64
    before = torch.ones(rows, columns).cuda()
    table = torch.full((rows, columns), 5.0).cuda()
    ids = torch.tensor([3, -1, 255, 0], dtype=torch.int32).cuda()
    out = torch.zeros(4, columns).cuda()
    kernels.launch("gather_rows", 4, columns, out, table, ids, columns)
    del before
    expected = torch.full((4, columns), 5.0)
    expected[1] = 0
    return Result(out.cpu(), expected)
