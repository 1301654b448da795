// The allocator's doors of the no-sharing mode.
#include "core/audited_call.h"
#include "core/core_allocator.h"

namespace gma {

Status CoreAllocator::begin_region(Isolation level, bool all_threads) {
    GMA_AUDITED_CALL;
    if (Status status = check_process(); !status.ok()) { return status; }
    const auto threads = all_threads ? Regions::Threads::All : Regions::Threads::This;
    regions_.begin(level, threads);
    for (auto& heap : heaps_) {
        if (Status status = heap->open_region(level); !status.ok()) {
            static_cast<void>(end_region(all_threads));
            return status;
        }
    }
    return {};
}

Status CoreAllocator::end_region(bool all_threads) {
    if (Status status = check_process(); !status.ok()) { return status; }
    const auto threads = all_threads ? Regions::Threads::All : Regions::Threads::This;
    if (!regions_.end(threads)) {
        return {Code::InvalidValue, "no region of isolation was begun here"};
    }
    for (auto& heap : heaps_) { heap->close_region(); }
    return {};
}

// A region's block has a level of its own.
Status CoreAllocator::check_may_leave(Address address) {
    Isolation level = isolation_of(options_);
    const std::optional<TraceRecord> block = describe(address);
    const bool in_region = block && block->pool_first == kRegionPools;
    if (in_region) { level = static_cast<Isolation>(block->pool_second); }
    if (level == Isolation::Off) { return {}; }
    return {Code::NotSupported, no_way_out_text(level, in_region)};
}

IsolationReport CoreAllocator::isolation_report(int device) {
    return usable(device) ? heap_of(device).isolation_report() : IsolationReport{};
}

std::vector<LedgerEntry> CoreAllocator::ledger(int device) {
    return usable(device) ? heap_of(device).ledger() : std::vector<LedgerEntry>{};
}

Result<std::int64_t> CoreAllocator::check_isolation(int device) {
    GMA_AUDITED_CALL;
    return ask<Result<std::int64_t>>(device, [](DeviceHeap& heap) { return heap.check_now(); });
}

// Of what nobody has allocated: a device that remembers it tells more.
Status CoreAllocator::refuse_free(Address address) {
    for (auto& heap : heaps_) {
        if (heap->knew(address)) { return heap->refuse_free(address); }
    }
    for (auto& heap : heaps_) {
        if (heap->watches()) { return heap->refuse_free(address); }
    }
    return foreign(address);
}

}  // namespace gma
