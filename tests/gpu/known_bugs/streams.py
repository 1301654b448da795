"""Work on a second stream that the allocator, or the first stream, knows nothing of.

The late kernel stands behind a fifth of a second of sleep. Each case goes through its steps twice,
the first time rightly: a kernel's first launch may wait for the whole device, and then nothing
would be late.
"""

from __future__ import annotations

from typing import Any

from tests.gpu.known_bugs.kernels import Kernels
from tests.gpu.known_bugs.table import Result, case

SOURCE = r"""
extern "C" __global__ void twice(float* out, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = 2 * in[i]; }
}

extern "C" __global__ void fill(float* out, float value, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = value; }
}
"""

FLOATS = 4096
BLOCKS = FLOATS // 256
SLEEP_CYCLES = 400_000_000


def filled(torch: Any, kernels: Kernels, value: float) -> Any:
    """Make a tensor on the current stream."""
    x = torch.empty(FLOATS, device="cuda")
    kernels.launch("fill", BLOCKS, 256, x, value, FLOATS)
    return x


# In `tensor` the free puts the pattern there while the late kernel waits: it reads NaN, or faults.
@case(
    mistake="a tensor is freed while a side stream reads it, without record_stream",
    signal="fault",
    packed="sometimes",
    card_only=True,
)
def missing_record_stream(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    out = torch.zeros(FLOATS).cuda()
    for forgotten in (False, wrong):
        x = filled(torch, kernels, 3.0)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES)
            kernels.launch("twice", BLOCKS, 256, out, x, FLOATS)
        if not forgotten:
            x.record_stream(side)
        del x
        following = filled(torch, kernels, 5.0)  # natively in the place of x
        torch.cuda.synchronize()
        del following
    return Result(out.cpu(), torch.full((FLOATS,), 6.0))


@case(
    mistake="a batch made on a prefetching stream is freed while the main stream reads it",
    signal="fault",
    packed="sometimes",
    card_only=True,
)
def prefetched_batch_not_recorded(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    out = torch.zeros(FLOATS).cuda()
    for forgotten in (False, wrong):
        with torch.cuda.stream(side):
            batch = filled(torch, kernels, 3.0)
        main.wait_stream(side)
        torch.cuda._sleep(SLEEP_CYCLES)
        kernels.launch("twice", BLOCKS, 256, out, batch, FLOATS)
        if not forgotten:
            batch.record_stream(main)
        del batch
        with torch.cuda.stream(side):
            following = filled(torch, kernels, 5.0)  # natively in its place
        torch.cuda.synchronize()
        del following
    return Result(out.cpu(), torch.full((FLOATS,), 6.0))


@case(
    mistake="a staging buffer is freed while the copy from pinned memory into it is still to come",
    signal="fault",
    packed="sometimes",
    card_only=True,
    tensor="sometimes",
)
def staging_freed_before_copy(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    host = torch.full((FLOATS,), 3.0).pin_memory()
    for forgotten in (False, wrong):
        staging = torch.empty(FLOATS, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLEEP_CYCLES)
            staging.copy_(host, non_blocking=True)
        if not forgotten:
            staging.record_stream(side)
        del staging
        following = filled(torch, kernels, 5.0)  # natively in its place
        torch.cuda.synchronize()
        got = following.cpu()
        del following
    return Result(got, torch.full((FLOATS,), 5.0))


# No memory is misused here: what shows it is that fresh memory holds NaN.
@case(
    mistake="a side stream reads what the main stream has still to write, and does not wait",
    signal="poison",
    packed="always",
    card_only=True,
)
def side_stream_does_not_wait(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    out = torch.zeros(FLOATS).cuda()
    for value, forgotten in ((2.0, False), (3.0, wrong)):
        x = torch.empty(FLOATS, device="cuda")
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)
        kernels.launch("fill", BLOCKS, 256, x, value, FLOATS)
        if not forgotten:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            kernels.launch("twice", BLOCKS, 256, out, x, FLOATS)
        torch.cuda.synchronize()
        del x
    return Result(out.cpu(), torch.full((FLOATS,), 6.0))
