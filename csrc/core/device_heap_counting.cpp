// The device's counting: large blocks under the lock as they come and go, small ones when their
// thread's cache is flushed.
#include <algorithm>

#include "core/device_heap.h"

namespace gma {
namespace {

void add(PooledGauge& gauge, StatPool pool, std::int64_t amount) {
    gauge[static_cast<std::size_t>(StatPool::All)].add(amount);
    gauge[static_cast<std::size_t>(pool)].add(amount);
}

void apply_to(Gauge& gauge, const CacheDelta::Sum& sum, std::int64_t peak_before) {
    gauge.peak = std::max(gauge.peak, gauge.current + std::max(sum.peak, peak_before));
    gauge.current += sum.net();
    gauge.allocated += sum.in;
    gauge.freed += sum.out;
}

void apply(PooledGauge& gauge, const CacheDelta::Sum& sum) {
    apply_to(gauge[static_cast<std::size_t>(StatPool::All)], sum, sum.peak_before);
    apply_to(gauge[static_cast<std::size_t>(StatPool::Small)], sum, sum.small_peak_before);
}

}  // namespace

void DeviceHeap::count_large_locked(const Block* block, int sign) {
    const StatPool pool = stat_pool(block->requested());
    note_change();
    large_live_count_ += sign;
    const auto bytes = static_cast<std::int64_t>(block->bytes) * sign;
    add(statistics_.allocation, pool, sign);
    add(statistics_.allocated_bytes, pool, bytes);
    add(statistics_.requested_bytes, pool, static_cast<std::int64_t>(block->requested()) * sign);
    if (sign > 0) { count_active_locked(block->bytes, pool, 1); }
}

void DeviceHeap::count_active_locked(Bytes bytes, StatPool pool, int sign) {
    note_change();
    add(statistics_.active, pool, sign);
    add(statistics_.active_bytes, pool, static_cast<std::int64_t>(bytes) * sign);
}

void DeviceHeap::count_reserved_locked() {
    const auto reserved = static_cast<std::int64_t>(strategy_->reserved_bytes());
    if (reserved != statistics_.reserved_bytes[0].current) { note_change(); }
    for (StatPool pool : {StatPool::All, StatPool::Large}) {
        statistics_.reserved_bytes[static_cast<std::size_t>(pool)].set(reserved);
    }
    if (!pools_.empty()) { count_pools_locked(); }
}

void DeviceHeap::flush(ThreadCache& cache) {
    std::lock_guard guard(lock_);
    flush_locked(cache);
}

void DeviceHeap::flush_locked(ThreadCache& cache) {
    if (!cache.dirty()) { return; }
    Block* const parked = cache.unpark();
    const CacheDelta delta = cache.take_delta();
    if (delta.has_retaken) { count_retaken_locked(delta); }
    // It was parked before the small objects of this delta came and went.
    if (parked != nullptr) { finish_large_free_locked(parked); }
    if (delta.count.in == 0 && delta.count.out == 0) { return; }
    apply(statistics_.allocation, delta.count);
    apply(statistics_.allocated_bytes, delta.bytes);
    apply(statistics_.requested_bytes, delta.requested_bytes);
    apply(statistics_.active, delta.count);
    apply(statistics_.active_bytes, delta.bytes);
}

// Blocks that were parked and taken again: freed and allocated, at no change of what is held.
void DeviceHeap::count_retaken_locked(const CacheDelta& delta) {
    for (StatPool pool : {StatPool::Small, StatPool::Large}) {
        const auto& retaken = delta.retaken[static_cast<std::size_t>(pool)];
        if (retaken.count == 0) { continue; }
        for (std::size_t i : {std::size_t{0}, static_cast<std::size_t>(pool)}) {
            auto turn_over = [&](PooledGauge& gauge, std::int64_t amount) {
                gauge[i].allocated += amount;
                gauge[i].freed += amount;
            };
            turn_over(statistics_.allocation, retaken.count);
            turn_over(statistics_.active, retaken.count);
            turn_over(statistics_.allocated_bytes, retaken.bytes);
            turn_over(statistics_.active_bytes, retaken.bytes);
            apply_to(statistics_.requested_bytes[i], retaken.requested_bytes, 0);
        }
    }
}

// A thread's own small blocks are counted before its next large one, so that with one thread the
// peaks are exact.
void DeviceHeap::flush_own_locked() {
    for_each_own_cache(id_, [this](ThreadCache* cache) { flush_locked(*cache); });
}

// What other threads have parked is free as well: the one that runs forward would keep its last
// block, of whatever size, from the one that runs backward.
void DeviceHeap::flush_for_request_locked() {
    flush_own_locked();
    for (auto& cache : caches_) {
        if (cache->has_any_parked()) { flush_locked(*cache); }
    }
}

}  // namespace gma
