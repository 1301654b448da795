// What the event ring is told beyond what the door knows: pools, sizes at a free, and the end of
// frees that waited.
#include "core/device_heap.h"
#include "core/segment.h"

namespace gma {

void DeviceHeap::fill_in(TraceRecord& record, const Block& block) const {
    const PoolId pool = block.arena != nullptr ? block.arena->key().pool : block.segment->pool;
    record.address = block.address;
    record.bytes = block.requested();
    record.stream = reinterpret_cast<std::uintptr_t>(block.stream());
    record.pool_first = static_cast<std::uint32_t>(pool.first);
    record.pool_second = static_cast<std::uint32_t>(pool.second);
    record.device = static_cast<std::int16_t>(device_);
    record.action = block.recorded ? Action::FreeRequested : Action::Free;
}

std::optional<TraceRecord> DeviceHeap::describe(Address address, std::uintptr_t tagged) {
    std::optional<TraceRecord> found(std::in_place);
    const auto fill_in_object = [&](TraceRecord& record, Slab* slab) {
        const ThreadCache::ObjectInfo object = slab->cache->info(slab, address);
        if (!object.allocated) { return false; }
        fill_in(record, *slab, address, object.requested_bytes);
        if (!object.recorded) { return true; }
        const std::lock_guard guard(lock_);
        if (pending_.waits(address)) { record.action = Action::FreeRequested; }
        return live_object_locked(slab, address);
    };
    const auto fill_in_block = [&](TraceRecord& record) {
        const std::lock_guard guard(lock_);
        const Block* block = live_block_locked(address);
        if (block == nullptr) { return false; }
        fill_in(record, *block);
        return true;
    };
    const bool is_live = (tagged & 1) != 0
                             ? fill_in_object(*found, reinterpret_cast<Slab*>(tagged - 1))
                             : fill_in_block(*found);
    if (!is_live) { found.reset(); }
    return found;
}

void DeviceHeap::note_completed(Address address, Bytes bytes) {
    if (!listeners_.ring.on() && !listeners_.inside()) { return; }
    TraceRecord record;
    record.address = address;
    record.bytes = bytes;
    record.device = static_cast<std::int16_t>(device_);
    record.action = Action::FreeCompleted;
    if (listeners_.ring.on()) { listeners_.ring.add(record); }
    listeners_.tell(record);
}

}  // namespace gma
