#include "torch/bridge/device_copies.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include "torch/bridge/bridge_allocator.h"
#include "torch/bridge/install.h"

namespace gma::bridge {
namespace {

bool stays(const at::Tensor& tensor) {
    return the_bridge()->keeps_on_device(tensor.storage().data());
}

bool is_ours_to_do(const at::Tensor& to, const at::Tensor& from) {
    return to.is_cuda() && from.is_cuda() && to.device() != from.device() && to.numel() > 0 &&
           is_installed() && (stays(to) || stays(from));
}

// What `later` will queue waits for what `first` has queued.
void order(const c10::cuda::CUDAStream& first, const c10::cuda::CUDAStream& later) {
    const c10::cuda::CUDAGuard guard(first.device());
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaError_t error = cudaEventRecord(event, first.stream());
    if (error == cudaSuccess) { error = cudaStreamWaitEvent(later.stream(), event, 0); }
    static_cast<void>(cudaEventDestroy(event));  // CUDA keeps it until it has passed
    C10_CUDA_CHECK(error);
}

// Both contiguous and of one type. As PyTorch has it, the source's current stream does the copy,
// after what the destination's has queued, and before what it will queue.
void copy_bytes(const at::Tensor& to, const at::Tensor& from) {
    const auto stream = c10::cuda::getCurrentCUDAStream(from.get_device());
    const auto other = c10::cuda::getCurrentCUDAStream(to.get_device());
    order(other, stream);
    {
        const c10::cuda::CUDAGuard guard(from.device());
        C10_CUDA_CHECK(cudaMemcpyPeerAsync(to.mutable_data_ptr(), to.get_device(),
                                           from.const_data_ptr(), from.get_device(), from.nbytes(),
                                           stream.stream()));
    }
    order(stream, other);
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
    if (!is_ours_to_do(to, from)) { return at::native::copy_(to, from, non_blocking); }
    const at::Tensor whole =
        from.expand(to.sizes()).to(to.scalar_type()).resolve_conj().resolve_neg().contiguous();
    if (to.is_contiguous() && !to.is_conj() && !to.is_neg()) {
        copy_bytes(to, whole);
    } else {
        const at::Tensor there = at::empty(to.sizes(), to.options());
        copy_bytes(there, whole);
        to.copy_(there, non_blocking);
    }
    return to;
}

}  // namespace

// CUDA tensors are otherwise copied by the kernel for all devices, so nobody's is replaced.
void install_device_copies() {
    static auto* const kLibrary = [] {
        auto* const library = new torch::Library(torch::Library::IMPL, "aten",
                                                 c10::DispatchKey::CUDA, __FILE__, __LINE__);
        library->impl("copy_", TORCH_FN(copy));
        return library;
    }();
    static_cast<void>(kLibrary);
}

}  // namespace gma::bridge
