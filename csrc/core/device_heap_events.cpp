// What the event ring is told beyond what the door knows: pools, sizes at a free, and the end of
// frees that waited.
#include "core/device_heap.h"
#include "core/segment.h"

namespace gma {

std::optional<TraceRecord> DeviceHeap::describe(Address address, std::uintptr_t tagged) {
    TraceRecord record;
    record.address = address;
    record.device = static_cast<std::int16_t>(device_);
    if ((tagged & 1) != 0) {
        auto* slab = reinterpret_cast<Slab*>(tagged - 1);
        const ThreadCache::ObjectInfo object = slab->cache->info(slab, address);
        if (!object.allocated) { return std::nullopt; }
        record.bytes = object.requested_bytes;
        record.stream = reinterpret_cast<std::uintptr_t>(slab->cache->key().stream);
        if (object.recorded) {
            const std::lock_guard guard(lock_);
            if (!live_object_locked(slab, address)) { return std::nullopt; }
        }
        record.action = object.recorded ? Action::FreeRequested : Action::Free;
        return record;
    }
    const std::lock_guard guard(lock_);
    const Block* block = live_block_locked(address);
    if (block == nullptr) { return std::nullopt; }
    record.bytes = block->requested();
    record.stream = reinterpret_cast<std::uintptr_t>(block->stream());
    const PoolId pool = block->arena != nullptr ? block->arena->key().pool : block->segment->pool;
    record.pool_first = static_cast<std::uint32_t>(pool.first);
    record.pool_second = static_cast<std::uint32_t>(pool.second);
    record.action = block->recorded ? Action::FreeRequested : Action::Free;
    return record;
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
