#include "core/core_allocator.h"

#include "base/format.h"
#include "core/audited_call.h"

namespace gma {
namespace {

// The ring, and whoever else observes a free.
class RingToo final : public EventSink {
public:
    RingToo(EventRing& ring, EventSink* observer) : ring_(ring), observer_(observer) {}
    void note(const TraceRecord& block) noexcept override {
        ring_.add(block);
        if (observer_ != nullptr) { observer_->note(block); }
    }

private:
    EventRing& ring_;
    EventSink* const observer_;
};

}  // namespace

Status CoreAllocator::too_large() {
    return {Code::OutOfMemory, "CUDA out of memory. Tried to allocate more than 1EB memory."};
}

Result<std::unique_ptr<Allocator>> Allocator::create(Driver& driver, const Options& options) {
    if (Status status = ForkGuard::prepare(); !status.ok()) { return status; }
    auto made = std::make_unique<CoreAllocator>(driver, options);
    if (Status status = made->start(); !status.ok()) { return status; }
    return std::unique_ptr<Allocator>(std::move(made));
}

Status CoreAllocator::start() {
    const Options& options = options_;
    if (options.event_ring_entries > 0) {
        Status status = listeners_.ring.start(options.event_ring_entries);
        if (!status.ok()) { return status; }
    }
    if (!addresses_.valid()) { return {Code::OutOfMemory, "no host memory for the address map"}; }
    for (int device = 0; device < driver_.device_count(); ++device) {
        Result<DeviceProperties> properties = driver_.properties(device);
        if (!properties) { return properties.status(); }
        if (properties->page_bytes == 0 && isolation_of(options) != Isolation::Off) {
            return {Code::NotSupported, no_mapping_text(device)};
        }
        heaps_.push_back(std::make_unique<DeviceHeap>(driver_, device, *properties, options_,
                                                      addresses_, listeners_, regions_));
    }
    return {};
}

// A forked child has no device to give anything back to, and locks that nobody will let go.
CoreAllocator::~CoreAllocator() {
    if (!fork_guard_.forked()) { return; }
    for (auto& heap : heaps_) { static_cast<void>(heap.release()); }
}

Result<Address> CoreAllocator::allocate(int device, Bytes bytes, Stream stream) {
    GMA_AUDITED_CALL;
    if (bytes == 0) { return Address{0}; }
    if (!usable(device)) [[unlikely]] { return check_device(device); }
    DeviceHeap& heap = heap_of(device);
    const Address hit =
        bytes <= kSmallMaxBytes ? heap.take_small(bytes, stream) : heap.take_parked(bytes, stream);
    if (hit != 0 && !listeners_.ring.on()) [[likely]] { return hit; }
    if (bytes >= kMaxRequestBytes) [[unlikely]] { return too_large(); }
    Result<Address> address = hit != 0 ? hit : heap.allocate(bytes, stream);
    if (listeners_.ring.on()) [[unlikely]] {
        note_allocation(heap, device, bytes, stream, address);
    }
    return address;
}

// After it is done, as a free is noted before: so the order of events is that of the hands that
// memory goes through.
void CoreAllocator::note_allocation(DeviceHeap& heap, int device, Bytes bytes, Stream stream,
                                    const Result<Address>& address) {
    TraceRecord record;
    record.bytes = bytes;
    record.stream = reinterpret_cast<std::uintptr_t>(stream);
    record.device = static_cast<std::int16_t>(device);
    if (address) {
        record.address = *address;
        if (heap.has_pools()) {
            const Place place = place_of(*address);
            if (const auto block = heap.describe(*address, place.tagged)) {
                record.pool_first = block->pool_first;
                record.pool_second = block->pool_second;
            }
        }
    } else if (address.status().code() == Code::OutOfMemory) {
        record.action = Action::Oom;
    } else {
        return;
    }
    listeners_.ring.add(record);
}

Status CoreAllocator::free(Address address) {
    GMA_AUDITED_CALL;
    if (address == 0 || fork_guard_.forked()) { return {}; }
    const Place place = place_of(address);
    if (place.heap == nullptr) [[unlikely]] { return refuse_free(address); }
    if (listeners_.ring.on()) [[unlikely]] { return free_for_ring(place, address, nullptr); }
    return place.heap->free(address, place.tagged);
}

Status CoreAllocator::free_observed(Address address, EventSink& observer) {
    GMA_AUDITED_CALL;
    if (address == 0 || fork_guard_.forked()) { return {}; }
    const Place place = place_of(address);
    if (place.heap == nullptr) [[unlikely]] { return refuse_free(address); }
    if (listeners_.ring.on()) [[unlikely]] { return free_for_ring(place, address, &observer); }
    return place.heap->free_observed(address, place.tagged, observer);
}

Status CoreAllocator::free_for_ring(const Place& place, Address address, EventSink* observer) {
    RingToo both(listeners_.ring, observer);
    return place.heap->free_observed(address, place.tagged, both);
}

}  // namespace gma
