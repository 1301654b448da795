// The core's statistics in torch's structs. Installed late, the previous allocator's are added, so
// that the sums tell what the process holds.
#include <cstring>

#include "torch/bridge/bridge_allocator.h"

namespace gma::bridge {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;

static_assert(sizeof(StatArray) == sizeof(PooledGauge) &&
              offsetof(Stat, peak) == offsetof(Gauge, peak) &&
              offsetof(Stat, allocated) == offsetof(Gauge, allocated) &&
              offsetof(Stat, freed) == offsetof(Gauge, freed));

void copy(StatArray& to, const PooledGauge& from) {
    std::memcpy(static_cast<void*>(&to), &from, sizeof(to));
}

void add(Stat& to, const Stat& from) {
    to.current += from.current;
    to.peak += from.peak;  // an upper bound: the two peaks may lie at different times
    to.allocated += from.allocated;
    to.freed += from.freed;
}

void add(StatArray& to, const StatArray& from) {
    for (std::size_t i = 0; i < to.size(); ++i) { add(to[i], from[i]); }
}

void add(DeviceStats& to, const DeviceStats& from) {
#define GMA_GAUGE(name, unit, sentence) add(to.name, from.name);
#define GMA_COUNTER(name, sentence)
#include "core/statistics.def"
#undef GMA_GAUGE
#undef GMA_COUNTER
    to.num_alloc_retries += from.num_alloc_retries;
    to.num_ooms += from.num_ooms;
    to.num_sync_all_streams += from.num_sync_all_streams;
    to.num_device_alloc += from.num_device_alloc;
    to.num_device_free += from.num_device_free;
    add(to.oversize_allocations, from.oversize_allocations);
    add(to.oversize_segments, from.oversize_segments);
#if GMA_TORCH_AT_LEAST(12)
    to.num_oom_rejections += from.num_oom_rejections;
#endif
#if GMA_TORCH_AT_LEAST(13)
    for (const auto& [pool, gauge] : from.reserved_bytes_by_private_pools) {
        add(to.reserved_bytes_by_private_pools[pool], gauge);
    }
#endif
}

// Python's calls come here with whatever number the user gave.
void check_device(const Core& core, DeviceIndex device) {
    TORCH_CHECK(0 <= device && device < core.device_count(), "Invalid device argument ",
                static_cast<int>(device), ": did you call init?");
}

// Torch's struct as this thread got it last: asking twice in a row costs one copy.
struct Counted {
    DeviceIndex device = -1;
    std::uint64_t version = 0;
    DeviceStats stats;
};
thread_local Counted last_counted;

}  // namespace

DeviceStats BridgeAllocator::getDeviceStats(DeviceIndex device) {
    Core& core = this->core();
    check_device(core, device);
    if (late_) { return counted(core, device, core.statistics(device)); }
    Counted& last = last_counted;
    if (last.version == 0 || last.device != device ||
        last.version != core.statistics_version(device)) {
        const DeviceStatistics now = core.statistics(device);
        last.stats = counted(core, device, now);
        last.device = device;
        last.version = now.version;  // another thread may have counted since
    }
    return last.stats;
}

DeviceStats BridgeAllocator::counted(Core& core, DeviceIndex device, const DeviceStatistics& ours) {
    DeviceStats stats;
#define GMA_GAUGE(name, unit, sentence) copy(stats.name, ours.name);
#define GMA_COUNTER(name, sentence)
#include "core/statistics.def"
#undef GMA_GAUGE
#undef GMA_COUNTER
    stats.num_alloc_retries = ours.num_alloc_retries;
    stats.num_ooms = ours.num_ooms;
    stats.num_sync_all_streams = ours.num_sync_all_streams;
    stats.num_device_alloc = ours.num_device_alloc;
    stats.num_device_free = ours.num_device_free;
    const std::uint64_t split_mb = core.options().max_split_size_mb;
    stats.max_split_size = split_mb == 0 ? -1 : static_cast<std::int64_t>(split_mb * 1_MiB);
#if GMA_TORCH_AT_LEAST(13)
    for (const PoolBytes& pool : core.pool_bytes(device)) {
        const MempoolId_t id{pool.pool.first, pool.pool.second};
        copy(stats.reserved_bytes_by_private_pools[id], pool.reserved_bytes);
    }
#endif
    if (late_) { add(stats, previous_->getDeviceStats(device)); }
    return stats;
}

void BridgeAllocator::resetAccumulatedStats(DeviceIndex device) {
    check_device(core(), device);
    core().reset_accumulated_statistics(device);
    if (late_) { previous_->resetAccumulatedStats(device); }
}

void BridgeAllocator::resetPeakStats(DeviceIndex device) {
    check_device(core(), device);
    core().reset_peak_statistics(device);
    if (late_) { previous_->resetPeakStats(device); }
}

}  // namespace gma::bridge
