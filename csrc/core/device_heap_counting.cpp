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

void apply(PooledGauge& gauge, const SmallDelta::Sum& sum) {
    for (StatPool pool : {StatPool::All, StatPool::Small}) {
        Gauge& one = gauge[static_cast<std::size_t>(pool)];
        one.peak = std::max(one.peak, one.current + sum.peak);
        one.current += sum.net();
        one.allocated += sum.in;
        one.freed += sum.out;
    }
}

}  // namespace

void DeviceHeap::count_large_locked(const Block* block, int sign) {
    const StatPool pool = stat_pool(block->requested_bytes);
    const auto bytes = static_cast<std::int64_t>(block->bytes) * sign;
    add(statistics_.allocation, pool, sign);
    add(statistics_.allocated_bytes, pool, bytes);
    add(statistics_.requested_bytes, pool,
        static_cast<std::int64_t>(block->requested_bytes) * sign);
    if (sign > 0) { count_active_locked(block->bytes, pool, 1); }
}

void DeviceHeap::count_active_locked(Bytes bytes, StatPool pool, int sign) {
    add(statistics_.active, pool, sign);
    add(statistics_.active_bytes, pool, static_cast<std::int64_t>(bytes) * sign);
}

void DeviceHeap::count_reserved_locked() {
    const auto reserved = static_cast<std::int64_t>(strategy_->reserved_bytes());
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
    const SmallDelta delta = cache.take_delta();
    if (delta.count.in == 0 && delta.count.out == 0) { return; }
    apply(statistics_.allocation, delta.count);
    apply(statistics_.allocated_bytes, delta.bytes);
    apply(statistics_.requested_bytes, delta.requested_bytes);
    apply(statistics_.active, delta.count);
    apply(statistics_.active_bytes, delta.bytes);
}

// A thread's own small blocks are counted before its next large one, so that with one thread the
// peaks are exact.
void DeviceHeap::flush_own_locked() {
    for_each_own_cache(id_, [this](ThreadCache* cache) { flush_locked(*cache); });
}

}  // namespace gma
