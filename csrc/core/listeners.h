// Who wants to know what the allocator does: callbacks before it gives up, the ring of events at
// its door, and at most one sink for what happens inside.
#pragma once

#include <atomic>
#include <vector>

#include "core/allocator.h"
#include "core/event_ring.h"

namespace gma {

struct Listeners {
    std::vector<Allocator::OutOfMemoryCallback> out_of_memory;
    EventRing ring;
    std::atomic<EventSink*> sink{nullptr};

    // Costs one relaxed load when nobody listens.
    bool inside() const { return sink.load(std::memory_order_relaxed) != nullptr; }
    void tell(const TraceRecord& record) const {
        if (EventSink* listener = sink.load(std::memory_order_acquire)) { listener->note(record); }
    }
    void tell_segment(Action action, int device, Address address, Bytes bytes, Stream stream,
                      PoolId pool) const {
        if (!inside()) { return; }
        TraceRecord record;
        record.action = action;
        record.device = static_cast<std::int16_t>(device);
        record.address = address;
        record.bytes = bytes;
        record.stream = reinterpret_cast<std::uintptr_t>(stream);
        record.pool_first = static_cast<std::uint32_t>(pool.first);
        record.pool_second = static_cast<std::uint32_t>(pool.second);
        tell(record);
    }
};

}  // namespace gma
