// What goes to the allocator that was there before us, where we were installed late.
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>

#include "torch/bridge/bridge_allocator.h"

namespace gma::bridge {

// Of two limits the smaller one holds. Whether history goes on is told by previous_records(); its
// observers and trackers cannot be read.
void BridgeAllocator::take_over() {
    if (!previous_->isEnabled()) {
        enable(false);
        previous_->enable(true);  // turned off, it would give its own blocks to cudaFree
    }
    if (previous_is_native_) { History::set_metadata(previous_->getUserMetadata()); }
    for (int device = 0; device < core().device_count(); ++device) {
        const auto index = static_cast<DeviceIndex>(device);
        // PyTorch's other one makes a context to answer.
        if (!previous_is_native_ && !c10::cuda::hasPrimaryContext(index)) { continue; }
        const double fraction = previous_->getMemoryFraction(index);
        if (fraction < 1.0 && fraction < getMemoryFraction(index)) {
            setMemoryFraction(fraction, index);
        }
    }
}

// Its history goes on for what it has served until ours is turned on or off.
bool BridgeAllocator::previous_records() {
    return late_ && previous_is_native_ && previous_->isHistoryEnabled();
}

// It throws where it does not know the pool, and where it has no pools.
bool BridgeAllocator::is_previous_pool(DeviceIndex device, MempoolId_t pool) {
    if (!late_ || core().pool_use_count(device, pool_of(pool)) != 0) { return false; }
    try {
        return previous_->getPoolUseCount(device, pool) > 0;
    } catch (const c10::Error&) { return false; }
}

// Of pools of both allocators the one that was begun last takes what comes.
bool BridgeAllocator::goes_to_previous(DeviceIndex device, cudaStream_t stream) {
    const std::lock_guard guard(lock_);
    for (auto it = routes_.rbegin(); it != routes_.rend(); ++it) {
        if (it->device == device && it->filter(stream)) { return it->owner == Owner::Previous; }
    }
    return false;
}

void BridgeAllocator::add_route(Route route) {
    const std::lock_guard guard(lock_);
    routes_.push_back(std::move(route));
    note_routes_locked();
}

void BridgeAllocator::remove_route(DeviceIndex device, MempoolId_t pool) {
    const std::lock_guard guard(lock_);
    const auto it = std::find_if(routes_.rbegin(), routes_.rend(), [&](const Route& one) {
        return one.device == device && one.pool == pool;
    });
    if (it != routes_.rend()) { routes_.erase(std::next(it).base()); }
    note_routes_locked();
}

void BridgeAllocator::note_routes_locked() {
    has_previous_routes_ = std::any_of(routes_.begin(), routes_.end(), [](const Route& one) {
        return one.owner == Owner::Previous;
    });
}

bool BridgeAllocator::release_previous(void* pointer) noexcept {
    if (!late_) { return false; }
    try {
        previous_->raw_delete(pointer);
        return true;
    } catch (...) { return false; }
}

}  // namespace gma::bridge
