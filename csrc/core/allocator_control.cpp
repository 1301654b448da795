// The allocator's slow doors: each asks one device's heap, or all.
#include "base/format.h"
#include "core/audited_call.h"
#include "core/core_allocator.h"

namespace gma {

Status CoreAllocator::foreign(Address address) {
    return {Code::InvalidValue,
            "address " + hex_text(address) +
                " was not allocated by gpumem_alloc.\nAnother allocator made it, or it was freed "
                "and its pages were given back.\nFree it once, by the allocator that made it, and "
                "record streams before that."};
}

Status CoreAllocator::check_device(int device) const {
    if (usable(device)) { return {}; }
    if (fork_guard_.forked()) { return fork_guard_.check(); }
    return {Code::InvalidValue, "there is no device " + std::to_string(device) + "; there are " +
                                    std::to_string(heaps_.size())};
}

CoreAllocator::Place CoreAllocator::search_heaps(Address address) {
    for (auto& heap : heaps_) {
        if (heap->owns(address)) { return {heap.get(), 0}; }
    }
    return {};
}

Result<CoreAllocator::Place> CoreAllocator::known_place(Address address) {
    if (Status status = fork_guard_.check(); !status.ok()) { return status; }
    const Place place = place_of(address);
    if (place.heap == nullptr) { return foreign(address); }
    return place;
}

Result<Address> CoreAllocator::allocate_at(int device, Bytes bytes, Stream stream, Address at) {
    GMA_AUDITED_CALL;
    return ask<Result<Address>>(
        device, [&](DeviceHeap& heap) { return heap.allocate_at(bytes, stream, at); });
}

Status CoreAllocator::record_stream(Address address, Stream stream) {
    GMA_AUDITED_CALL;
    if (address == 0) { return {}; }
    Result<Place> place = known_place(address);
    if (!place) { return place.status(); }
    Status status = place->heap->record_stream(address, place->tagged, stream);
    if (listeners_.ring.on()) [[unlikely]] {
        auto block = place->heap->describe(address, place->tagged);
        if (status.ok() && block) {
            block->action = Action::RecordStream;
            block->stream = reinterpret_cast<std::uintptr_t>(stream);
            listeners_.ring.add(*block);
        }
    }
    return status;
}

std::optional<TraceRecord> CoreAllocator::describe(Address address) {
    if (fork_guard_.forked()) { return std::nullopt; }
    const Place place = place_of(address);
    if (place.heap == nullptr) { return std::nullopt; }
    return place.heap->describe(address, place.tagged);
}

Result<BaseAllocation> CoreAllocator::base_allocation(Address address) {
    Result<Place> place = known_place(address);
    if (!place) { return place.status(); }
    return place->heap->base_allocation(address, place->tagged);
}

Status CoreAllocator::pin(Address address) {
    GMA_AUDITED_CALL;
    Result<Place> place = known_place(address);
    if (!place) { return place.status(); }
    return place->heap->pin(address, place->tagged, DeviceHeap::Pin::Add);
}

Status CoreAllocator::unpin(Address address) {
    GMA_AUDITED_CALL;
    Result<Place> place = known_place(address);
    if (!place) { return place.status(); }
    return place->heap->pin(address, place->tagged, DeviceHeap::Pin::Remove);
}

Result<ExportedBlock> CoreAllocator::export_block(Address address) {
    GMA_AUDITED_CALL;
    Result<Place> place = known_place(address);
    if (!place) { return place.status(); }
    if (Status status = check_may_leave(address); !status.ok()) { return status; }
    return place->heap->export_block(address, place->tagged);
}

Result<Address> CoreAllocator::import_block(int device, const std::vector<ExportedPiece>& pieces) {
    if (Status status = check_device(device); !status.ok()) { return status; }
    return imports_.add(device, pieces);
}

Status CoreAllocator::drop_import(Address address) {
    Status status = check_process();
    return status.ok() ? imports_.drop(address) : status;
}

Result<Bytes> CoreAllocator::trim(int device, Bytes bytes) {
    GMA_AUDITED_CALL;
    return ask<Result<Bytes>>(device, [&](DeviceHeap& heap) {
        if (listeners_.ring.on()) {
            TraceRecord record;
            record.device = static_cast<std::int16_t>(device);
            record.action = Action::EmptyCache;
            listeners_.ring.add(record);
        }
        return heap.trim(bytes);
    });
}

Status CoreAllocator::reserve(int device, Bytes bytes, Stream stream) {
    GMA_AUDITED_CALL;
    if (bytes >= kMaxRequestBytes) { return too_large(); }
    return ask<Status>(device, [&](DeviceHeap& heap) { return heap.reserve(bytes, stream); });
}

Status CoreAllocator::set_limit(int device, Bytes limit_bytes) {
    GMA_AUDITED_CALL;
    return ask<Status>(device, [&](DeviceHeap& heap) { return heap.set_limit(limit_bytes); });
}

Bytes CoreAllocator::limit(int device) { return usable(device) ? heap_of(device).limit() : 0; }

Bytes CoreAllocator::largest_available_bytes(int device) {
    return usable(device) ? heap_of(device).largest_available_bytes() : 0;
}

void CoreAllocator::add_out_of_memory_callback(OutOfMemoryCallback callback) {
    listeners_.out_of_memory.push_back(std::move(callback));
}

DeviceStatistics CoreAllocator::statistics(int device) {
    return usable(device) ? heap_of(device).statistics() : DeviceStatistics{};
}

void CoreAllocator::reset_peak_statistics(int device) {
    if (usable(device)) { heap_of(device).reset_peak_statistics(); }
}

void CoreAllocator::reset_accumulated_statistics(int device) {
    if (usable(device)) { heap_of(device).reset_accumulated_statistics(); }
}

std::vector<SegmentInfo> CoreAllocator::snapshot(int device) {
    return usable(device) ? heap_of(device).snapshot() : std::vector<SegmentInfo>{};
}

Strategy CoreAllocator::strategy(int device) {
    return usable(device) ? heap_of(device).strategy_kind() : strategy_of(options_);
}

Status CoreAllocator::audit() {
    if (Status status = check_process(); !status.ok()) { return status; }
    for (auto& heap : heaps_) {
        if (Status status = heap->audit(); !status.ok()) { return status; }
    }
    return {};
}

}  // namespace gma
