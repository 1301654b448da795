// From the entries of a ring to torch's.
#pragma once

#include "torch/bridge/history_ring.h"

namespace gma::bridge {

inline c10::CachingDeviceAllocator::TraceEntry trace_entry(
    const HistoryEntry& entry, const HistoryExtra& extra,
    c10::CachingDeviceAllocator::TraceEntry::Action action) {
    return c10::CachingDeviceAllocator::TraceEntry(
        action, entry.device, entry.address, entry.bytes, entry.stream,
        {entry.pool_first, entry.pool_second}, entry.time, extra.context,
        extra.labels != nullptr ? extra.labels->compile_context : kNoCompileContext,
        extra.labels != nullptr ? extra.labels->metadata : "");
}

// As torch has it: one entry for each action.
template <class Use>
void expand(const HistoryEntry& entry, const HistoryExtra& extra, Use&& use) {
    using TraceEntry = c10::CachingDeviceAllocator::TraceEntry;
    use(trace_entry(entry, extra, static_cast<TraceEntry::Action>(entry.action)));
    if (entry.completes) { use(trace_entry(entry, extra, TraceEntry::FREE_COMPLETED)); }
}

}  // namespace gma::bridge
