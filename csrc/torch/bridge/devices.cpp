// What concerns the whole card or several: limits, free memory, peers, other processes.
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include "torch/bridge/bridge_allocator.h"
#include "torch/bridge/device_copies.h"
#include "torch/bridge/errors.h"
#include "torch/bridge/ipc.h"
#include "torch/bridge/settings.h"

namespace gma::bridge {
namespace {

std::size_t card_bytes(DeviceIndex device) {
    const c10::cuda::CUDAGuard guard(device);
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return total_bytes;
}

// What others gave torch to free when memory runs out, such as tensors kept for other processes.
bool run_free_memory_callbacks() {
    bool freed_some = false;
    auto* const registry = c10::FreeCudaMemoryCallbacksRegistry();
    for (const auto& name : registry->Keys()) { freed_some |= registry->Create(name)->Execute(); }
    return freed_some;
}

}  // namespace

Core& BridgeAllocator::start() {
    static std::mutex starting;
    const std::lock_guard guard(starting);
    if (Core* made = core_.load(std::memory_order_acquire)) { return *made; }
    const double fraction = memory_fraction_setting();
    Core* const made = value_of(access_.allocator());
    made->add_out_of_memory_callback([](const OutOfMemoryReport&) noexcept {
        try {
            return run_free_memory_callbacks();
        } catch (...) { return false; }
    });
    core_.store(made, std::memory_order_release);
    warn_of_idle_settings(made->options().strategy);
    isolated_ = made->options().isolation != "off";
    if (isolated_ && !caching_.exchange(true)) {
        warn_of_isolation("PYTORCH_NO_CUDA_MEMORY_CACHING");
    }
    if (made->device_count() > 1) { install_device_copies(); }
    for (int device = 0; fraction < 1.0 && device < made->device_count(); ++device) {
        setMemoryFraction(fraction, static_cast<DeviceIndex>(device));
    }
    return *made;
}

void BridgeAllocator::init(int) { core(); }

void BridgeAllocator::emptyCache(MempoolId_t pool) {
    Core& core = this->core();
    const auto context = history_.gather(RecordContext::ALL);
    const History::Cause cause(context);
    for (int device = 0; device < core.device_count(); ++device) {
        if (pool == MempoolId_t{0, 0}) {
            check(core.trim(device).status());
        } else {
            check(core.trim_pool(device, pool_of(pool)).status());
        }
    }
    if (late_) { previous_->emptyCache(pool); }
    if (cause.was_told()) { follow_trackers(core, cause); }
}

double BridgeAllocator::getMemoryFraction(DeviceIndex device) {
    const Bytes limit = core().limit(device);  // before the lock, which the core's start takes
    {
        const std::lock_guard guard(lock_);
        const auto index = static_cast<std::size_t>(device);
        if (index < fractions_.size() && fractions_[index] && fractions_[index]->limit == limit) {
            return fractions_[index]->fraction;
        }
    }
    return std::min(1.0, static_cast<double>(limit) / static_cast<double>(card_bytes(device)));
}

void BridgeAllocator::setMemoryFraction(double fraction, DeviceIndex device) {
    TORCH_CHECK(0.0 <= fraction && fraction <= 1.0, "invalid fraction:", fraction,
                ". Please set within [0, 1].");
    const auto limit = static_cast<Bytes>(fraction * static_cast<double>(card_bytes(device)));
    check(core().set_limit(device, limit));
    const Bytes in_force = core().limit(device);
    const std::lock_guard guard(lock_);
    const auto index = static_cast<std::size_t>(device);
    if (index >= fractions_.size()) { fractions_.resize(index + 1); }
    fractions_[index] = Fraction{fraction, in_force};
}

// cuDNN asks before it tries algorithms. A larger value is left: it is another device's.
void BridgeAllocator::cacheInfo(DeviceIndex device, std::size_t* largest) {
    *largest = std::max<std::size_t>(*largest, core().largest_available_bytes(device));
}

std::vector<cca::StreamSegmentSize> BridgeAllocator::getExpandableSegmentSizes(DeviceIndex device) {
    std::vector<cca::StreamSegmentSize> sizes;
    for (const SegmentInfo& segment : core().snapshot(device)) {
        if (!segment.is_expandable) { continue; }
        const auto stream = static_cast<cudaStream_t>(segment.stream);
        auto it = std::find_if(sizes.begin(), sizes.end(),
                               [&](const auto& one) { return one.stream == stream; });
        if (it == sizes.end()) {
            sizes.emplace_back(stream, /*is_small_pool=*/false, segment.bytes);
        } else {
            it->total_size += segment.bytes;
        }
    }
    return sizes;
}

// Chunks are open to every capable peer from the start; what others get with cudaMalloc is not.
// With isolation they are open to nobody, and copies do without (device_copies.h).
void BridgeAllocator::enablePeerAccess(DeviceIndex device, DeviceIndex peer) {
    TORCH_CHECK(!isolated_, "gpumem_alloc: isolation:", core().options().isolation,
                " lets no device reach another's memory: device ", static_cast<int>(device),
                " asks for that of device ", static_cast<int>(peer),
                ".\nMemory of the no-sharing mode is mapped on its own device alone.\nCopy with "
                "tensor.to() or copy_(), which need no peer access, or run the program without "
                "isolation.");
    const c10::cuda::CUDAGuard guard(device);
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        static_cast<void>(cudaGetLastError());
    } else {
        C10_CUDA_CHECK(error);
    }
}

cudaError_t BridgeAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                         std::size_t bytes, cudaStream_t stream, bool peer_access) {
    if (to_device == from_device || (peer_access && !isolated_)) {
        return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    }
    // Mapped memory of two devices that cannot reach each other: only this call stages the copy.
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

cca::ShareableHandle BridgeAllocator::shareIpcHandle(void* pointer) {
    check(core().check_may_leave(address_of(pointer)));
    if (late_ && !is_ours(pointer)) { return previous_->shareIpcHandle(pointer); }
    return share(core(), pointer);
}

std::shared_ptr<void> BridgeAllocator::getIpcDevPtr(std::string handle) {
    return open(core(), handle);
}

}  // namespace gma::bridge
