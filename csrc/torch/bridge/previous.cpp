// What goes to the allocator that was there before us, where we were installed late.
#include <algorithm>

#include "torch/bridge/bridge_allocator.h"

namespace gma::bridge {

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
