// What the event ring is told beyond what the door knows: pools, sizes at a free, and the end of
// frees that waited.
#include "core/device_heap.h"
#include "core/segment.h"

namespace gma {

// Out of line: a second copy beside that of the free that nobody observes would cost that one its
// inlining.
Status DeviceHeap::free_observed(Address address, std::uintptr_t tagged, EventSink& observer) {
    return free(address, tagged, &observer);
}

TraceRecord DeviceHeap::free_record(const Block& block) const {
    const PoolId pool = block.arena != nullptr ? block.arena->key().pool : block.segment->pool;
    TraceRecord record;
    record.address = block.address;
    record.bytes = block.requested();
    record.stream = reinterpret_cast<std::uintptr_t>(block.stream());
    record.pool_first = static_cast<std::uint32_t>(pool.first);
    record.pool_second = static_cast<std::uint32_t>(pool.second);
    record.device = static_cast<std::int16_t>(device_);
    record.action = block.recorded ? Action::FreeRequested : Action::Free;
    return record;
}

std::optional<TraceRecord> DeviceHeap::describe(Address address, std::uintptr_t tagged) {
    if ((tagged & 1) == 0) {
        const std::lock_guard guard(lock_);
        const Block* block = live_block_locked(address);
        return block != nullptr ? std::optional(free_record(*block)) : std::nullopt;
    }
    auto* slab = reinterpret_cast<Slab*>(tagged - 1);
    const ThreadCache::ObjectInfo object = slab->cache->info(slab, address);
    if (!object.allocated) { return std::nullopt; }
    TraceRecord record = slab->cache->free_record(address, object.requested_bytes);
    if (!object.recorded) { return record; }
    const std::lock_guard guard(lock_);
    if (free_waits_locked(address)) { record.action = Action::FreeRequested; }
    return live_object_locked(slab, address) ? std::optional(record) : std::nullopt;
}

// Before the memory goes anywhere: it is told as its request was.
void DeviceHeap::note_completed(const PendingFree& free) {
    if (!listeners_.ring.on() && !listeners_.inside()) { return; }
    TraceRecord record =
        free.slab == nullptr
            ? free_record(*free.block)
            : free.slab->cache->free_record(
                  free.address, free.slab->cache->requested_bytes(free.slab, free.address));
    record.action = Action::FreeCompleted;
    if (listeners_.ring.on()) { listeners_.ring.add(record); }
    listeners_.tell(record);
}

}  // namespace gma
