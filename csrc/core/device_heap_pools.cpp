// The device's private pools and what captures do to it.
#include <algorithm>
#include <utility>

#include "core/device_heap.h"

namespace gma {

Status DeviceHeap::begin_pool(PoolId pool, std::function<bool(Stream)> filter) {
    std::lock_guard guard(lock_);
    routes_.push_back({pool, std::move(filter)});
    ++pool_uses_[pool];
    strategy_->begin_pool(pool);
    has_pools_ = true;
    small_path_open_ = false;
    return {};
}

Status DeviceHeap::end_pool(PoolId pool) {
    std::lock_guard guard(lock_);
    auto it = std::find_if(routes_.rbegin(), routes_.rend(),
                           [&](const Route& route) { return route.pool == pool; });
    if (it == routes_.rend()) { return {Code::InvalidValue, "this pool was not begun"}; }
    routes_.erase(std::next(it).base());
    if (routes_.empty()) {
        pool_streams_.clear();
        small_path_open_ = kind_ == Strategy::Paged;
        pending_.resume();
    }
    return {};
}

// Graphs may share a pool. Each began it and releases it; the last one gives its memory free.
Status DeviceHeap::release_pool(PoolId pool) {
    std::lock_guard guard(lock_);
    if (auto it = pool_uses_.find(pool); it != pool_uses_.end()) {
        if (--it->second > 0) { return {}; }
        pool_uses_.erase(it);
    }
    strategy_->release_pool(pool);
    return {};
}

Status DeviceHeap::retain_pool(PoolId, std::shared_ptr<SegmentProvider>) {
    return {Code::NotSupported, "retain_pool"};
}
std::uint64_t DeviceHeap::pool_use_count(PoolId pool) {
    std::lock_guard guard(lock_);
    auto it = pool_uses_.find(pool);
    return it == pool_uses_.end() ? 0 : it->second;
}
Status DeviceHeap::set_pool_use_on_oom(PoolId, bool) { return {}; }
Status DeviceHeap::set_pool_no_split(PoolId) { return {}; }
Result<Bytes> DeviceHeap::trim_pool(PoolId) { return Bytes{0}; }
std::vector<PoolBytes> DeviceHeap::pool_bytes() { return {}; }
Result<std::vector<PoolBlock>> DeviceHeap::pool_state(PoolId) {
    return Status(Code::NotSupported, "pool_state");
}
Result<PoolChange> DeviceHeap::restore_pool(PoolId, const std::vector<PoolBlock>&) {
    return Status(Code::NotSupported, "restore_pool");
}
void DeviceHeap::begin_capture() {}
void DeviceHeap::end_capture() {}
Result<Address> DeviceHeap::allocate_at(Bytes, Stream, Address) {
    return Status(Code::NotSupported, "allocate_at");
}

}  // namespace gma
