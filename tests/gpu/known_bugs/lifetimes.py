"""Pointers that outlive the memory they point to."""

from __future__ import annotations

from typing import Any

from tests.gpu.known_bugs.kernels import Address, Kernels
from tests.gpu.known_bugs.table import Result, case

SOURCE = r"""
extern "C" __global__ void multiply(float* out, const float* weight, const float* in, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = weight[i] * in[i]; }
}

extern "C" __global__ void double_in_place(float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { x[i] *= 2; }
}
"""

FLOATS = 4096
BLOCKS = FLOATS // 256


class Layer:
    """A layer written as an extension: Python keeps the weight, the kernel gets an address."""

    def __init__(self, kernels: Kernels, weight: Any, keeps_address: bool) -> None:
        self.kernels = kernels
        self.weight = weight
        self.kept = Address(weight.data_ptr()) if keeps_address else None

    def forward(self, out: Any, x: Any) -> None:
        address = Address(self.weight.data_ptr()) if self.kept is None else self.kept
        self.kernels.launch("multiply", BLOCKS, 256, out, address, x, FLOATS)


# In `tensor` the free puts the pattern there in stream order, so that what is read is NaN at least.
@case(
    mistake="an extension keeps a weight's address, and the weight is replaced",
    signal="fault",
    packed="sometimes",
)
def extension_keeps_address(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    x = torch.ones(FLOATS).cuda()
    out = torch.zeros(FLOATS).cuda()
    layer = Layer(kernels, torch.full((FLOATS,), 2.0).cuda(), keeps_address=wrong)
    layer.forward(out, x)
    layer.weight = torch.full((FLOATS,), 3.0).cuda()
    layer.forward(out, x)
    return Result(out.cpu(), torch.full((FLOATS,), 3.0))


@case(
    mistake="an address is taken before resize_(), which moves the tensor, and written to after it",
    signal="fault",
    packed="sometimes",
    tensor="sometimes",
)
def address_before_resize(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    x = torch.ones(FLOATS).cuda()
    address = Address(x.data_ptr())
    x.resize_(4 * FLOATS)
    if not wrong:
        address = Address(x.data_ptr())
    kernels.launch("double_in_place", BLOCKS, 256, address, FLOATS)
    return Result(x[:FLOATS].cpu(), torch.full((FLOATS,), 2.0))


class Upper:
    """The upper half of a tensor, for other libraries, by its address."""

    def __init__(self, tensor: Any, owns: bool) -> None:
        self.owner = tensor if owns else None
        half = tensor.numel() // 2
        self.__cuda_array_interface__ = {
            "shape": (half,),
            "typestr": "<f4",
            "data": (tensor[half:].data_ptr(), False),
            "version": 2,
        }


@case(
    mistake="a view made through __cuda_array_interface__ outlives its tensor, and is written to",
    signal="fault",
    packed="sometimes",
    tensor="sometimes",
    card_only=True,
)
def view_of_freed_memory(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    x = torch.ones(FLOATS).cuda()
    view = torch.as_tensor(Upper(x, owns=not wrong), device="cuda")
    del x
    view.add_(1.0)
    return Result(view.cpu(), torch.full((FLOATS // 2,), 2.0))


# Natively the next block has the address of the first: the second free takes it from its owner.
@case(
    mistake="two owners of one raw block both free it, the second when it is someone else's",
    signal="violation",
    packed="sometimes",
)
def double_free(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    size_bytes = 4 * FLOATS
    first = torch.cuda.caching_allocator_alloc(size_bytes)
    torch.cuda.caching_allocator_delete(first)
    second = torch.cuda.caching_allocator_alloc(size_bytes)
    try:
        torch.cuda.caching_allocator_delete(first if wrong else second)
    except RuntimeError as error:
        return Result(refused=str(error))
    return Result()


@case(
    mistake="a graph's output is read by its address after graph and pool are gone",
    signal="fault",
    packed="sometimes",
    tensor="sometimes",
)
def output_of_released_graph(torch: Any, kernels: Kernels, wrong: bool) -> Result:
    x = torch.full((FLOATS,), 2.0).cuda()
    result = torch.zeros(FLOATS).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.empty(FLOATS, device="cuda")
        kernels.launch("multiply", BLOCKS, 256, out, x, x, FLOATS)
    graph.replay()
    torch.cuda.synchronize()
    address = Address(out.data_ptr())
    if wrong:
        graph.reset()
        del out, graph
        torch.cuda.synchronize()
    kernels.launch("multiply", BLOCKS, 256, result, address, x, FLOATS)
    return Result(result.cpu(), torch.full((FLOATS,), 8.0))
