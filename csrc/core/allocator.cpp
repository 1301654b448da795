#include "core/allocator.h"

#include <string>

#include "base/check.h"
#include "base/format.h"
#include "core/address_map.h"
#include "core/device_heap.h"
#include "core/fork_guard.h"

namespace gma {

struct Allocator::State {
    State(Driver& driver_in, Options options_in)
        : driver(driver_in), options(std::move(options_in)) {}

    Driver& driver;
    const Options options;
    const ForkGuard fork_guard;
    EventRing events;
    AddressMap addresses;
    OutOfMemoryCallbacks callbacks;
    std::vector<std::unique_ptr<DeviceHeap>> heaps;

    // What may use a device: it is there, and it is this process's.
    bool usable(int device) const {
        return static_cast<std::size_t>(device) < heaps.size() && !fork_guard.forked();
    }
    Status check_device(int device) const {
        if (usable(device)) { return {}; }
        if (fork_guard.forked()) { return fork_guard.check(); }
        return {Code::InvalidValue, "there is no device " + std::to_string(device) +
                                        "; there are " + std::to_string(heaps.size())};
    }
};

namespace {

constexpr const char* kTooLarge = "CUDA out of memory. Tried to allocate more than 1EB memory.";

// Where an address lies: its device's heap and what the arena says starts there.
struct Place {
    DeviceHeap* heap = nullptr;
    std::uintptr_t tagged = 0;
};

template <class Heaps>
Place search_heaps(Heaps& heaps, Address address) {
    for (auto& heap : heaps) {
        if (heap->owns(address)) { return {heap.get(), 0}; }
    }
    return {};
}

template <class Heaps>
inline Place place_of(AddressMap& addresses, Heaps& heaps, Address address) {
    if (Arena* arena = addresses.find(address); arena != nullptr) [[likely]] {
        return {heaps[static_cast<std::size_t>(arena->key().device)].get(),
                arena->tagged_start(address)};
    }
    return search_heaps(heaps, address);
}

Status foreign(Address address) {
    char text[96];
    std::snprintf(text, sizeof(text), "address 0x%llx was not allocated by gpumem_alloc",
                  static_cast<unsigned long long>(address));
    return {Code::InvalidValue, text};
}

}  // namespace

// The audit preset recounts everything around every public call that changes something.
#if GMA_AUDIT_EVERY_CALL
namespace {

class AuditedCall {
public:
    explicit AuditedCall(Allocator& allocator) : allocator_(allocator) { audit("before a call:"); }
    ~AuditedCall() { audit("after a call:"); }
    AuditedCall(const AuditedCall&) = delete;
    AuditedCall& operator=(const AuditedCall&) = delete;

private:
    void audit(const char* when) {
        const Status status = allocator_.audit();
        if (status.ok() || status.code() == Code::Forked) { return; }
        audit_failed(when, status.message().c_str());
    }
    Allocator& allocator_;
};

}  // namespace
#define GMA_AUDITED_CALL const AuditedCall audited_call(*this)
#else
#define GMA_AUDITED_CALL static_cast<void>(0)
#endif

Allocator::Allocator(std::unique_ptr<State> state) : state_(std::move(state)) {}
// A forked child has no device to give anything back to, and locks that nobody will let go.
Allocator::~Allocator() {
    if (state_->fork_guard.forked()) { static_cast<void>(state_.release()); }
}

Result<std::unique_ptr<Allocator>> Allocator::create(Driver& driver, const Options& options) {
    if (Status status = ForkGuard::prepare(); !status.ok()) { return status; }
    auto state = std::make_unique<State>(driver, options);
    if (options.event_ring_entries > 0) {
        Status status = state->events.start(options.event_ring_entries);
        if (!status.ok()) { return status; }
    }
    if (!state->addresses.valid()) {
        return Status(Code::OutOfMemory, "no host memory for the address map");
    }
    for (int device = 0; device < driver.device_count(); ++device) {
        Result<DeviceProperties> properties = driver.properties(device);
        if (!properties) { return properties.status(); }
        state->heaps.push_back(std::make_unique<DeviceHeap>(driver, device, *properties,
                                                            state->options, state->addresses,
                                                            state->callbacks, state->events));
    }
    return std::unique_ptr<Allocator>(new Allocator(std::move(state)));
}

Result<Address> Allocator::allocate(int device, Bytes bytes, Stream stream) {
    GMA_AUDITED_CALL;
    if (bytes == 0) { return Address{0}; }
    if (!state_->usable(device)) [[unlikely]] { return state_->check_device(device); }
    DeviceHeap& heap = *state_->heaps[static_cast<std::size_t>(device)];
    const Address hit = heap.take_small(bytes, stream);
    if (hit != 0 && !state_->events.on()) [[likely]] { return hit; }
    if (bytes >= kMaxRequestBytes) { return Status(Code::OutOfMemory, kTooLarge); }
    Result<Address> address = hit != 0 ? hit : heap.allocate(bytes, stream);
    if (state_->events.on()) [[unlikely]] { note_allocation(heap, device, bytes, stream, address); }
    return address;
}

// After it is done, as a free is noted before: so the order of events is that of the hands that
// memory goes through.
void Allocator::note_allocation(DeviceHeap& heap, int device, Bytes bytes, Stream stream,
                                const Result<Address>& address) {
    TraceRecord record;
    record.bytes = bytes;
    record.stream = reinterpret_cast<std::uintptr_t>(stream);
    record.device = static_cast<std::int16_t>(device);
    if (address) {
        record.address = *address;
        if (heap.has_pools()) {
            const Place place = place_of(state_->addresses, state_->heaps, *address);
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
    state_->events.add(record);
}

#define GMA_HEAP_OR_RETURN(heap, device)                                            \
    if (Status device_status = state_->check_device(device); !device_status.ok()) { \
        return device_status;                                                       \
    }                                                                               \
    DeviceHeap& heap = *state_->heaps[static_cast<std::size_t>(device)]

#define GMA_PLACE_OR_RETURN(place, address)                                          \
    if (Status status = state_->fork_guard.check(); !status.ok()) { return status; } \
    const Place place = place_of(state_->addresses, state_->heaps, address);         \
    if (place.heap == nullptr) { return foreign(address); }

Status Allocator::free(Address address) {
    GMA_AUDITED_CALL;
    if (address == 0 || state_->fork_guard.forked()) { return {}; }
    const Place place = place_of(state_->addresses, state_->heaps, address);
    if (place.heap == nullptr) [[unlikely]] { return foreign(address); }
    if (state_->events.on()) [[unlikely]] {
        if (const auto block = place.heap->describe(address, place.tagged)) {
            state_->events.add(*block);
        }
    }
    return place.heap->free(address, place.tagged);
}

Status Allocator::record_stream(Address address, Stream stream) {
    GMA_AUDITED_CALL;
    if (address == 0) { return {}; }
    GMA_PLACE_OR_RETURN(place, address);
    Status status = place.heap->record_stream(address, place.tagged, stream);
    if (state_->events.on()) [[unlikely]] {
        auto block = place.heap->describe(address, place.tagged);
        if (status.ok() && block) {
            block->action = Action::RecordStream;
            block->stream = reinterpret_cast<std::uintptr_t>(stream);
            state_->events.add(*block);
        }
    }
    return status;
}

Result<BaseAllocation> Allocator::base_allocation(Address address) {
    GMA_PLACE_OR_RETURN(place, address);
    return place.heap->base_allocation(address, place.tagged);
}

Status Allocator::pin(Address address) {
    GMA_AUDITED_CALL;
    GMA_PLACE_OR_RETURN(place, address);
    return place.heap->pin(address, place.tagged, DeviceHeap::Pin::Add);
}

Status Allocator::unpin(Address address) {
    GMA_AUDITED_CALL;
    GMA_PLACE_OR_RETURN(place, address);
    return place.heap->pin(address, place.tagged, DeviceHeap::Pin::Remove);
}

Status Allocator::begin_pool(int device, PoolId pool, std::function<bool(Stream)> filter) {
    GMA_AUDITED_CALL;
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.begin_pool(pool, std::move(filter));
}

Status Allocator::end_pool(int device, PoolId pool) {
    GMA_AUDITED_CALL;
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.end_pool(pool);
}

Status Allocator::release_pool(int device, PoolId pool) {
    GMA_AUDITED_CALL;
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.release_pool(pool);
}

Result<Bytes> Allocator::trim(int device, Bytes bytes) {
    GMA_AUDITED_CALL;
    GMA_HEAP_OR_RETURN(heap, device);
    if (state_->events.on()) {
        TraceRecord record;
        record.device = static_cast<std::int16_t>(device);
        record.action = Action::EmptyCache;
        state_->events.add(record);
    }
    return heap.trim(bytes);
}

Status Allocator::reserve(int device, Bytes bytes, Stream stream) {
    GMA_AUDITED_CALL;
    GMA_HEAP_OR_RETURN(heap, device);
    if (bytes >= kMaxRequestBytes) { return {Code::OutOfMemory, kTooLarge}; }
    return heap.reserve(bytes, stream);
}

Status Allocator::set_limit(int device, Bytes limit_bytes) {
    GMA_AUDITED_CALL;
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.set_limit(limit_bytes);
}

Bytes Allocator::limit(int device) {
    if (!state_->check_device(device).ok()) { return 0; }
    return state_->heaps[static_cast<std::size_t>(device)]->limit();
}

void Allocator::add_out_of_memory_callback(OutOfMemoryCallback callback) {
    state_->callbacks.push_back(std::move(callback));
}

int Allocator::device_count() const { return static_cast<int>(state_->heaps.size()); }
Status Allocator::check_process() const { return state_->fork_guard.check(); }
EventRing& Allocator::events() { return state_->events; }
const Options& Allocator::options() const { return state_->options; }

DeviceStatistics Allocator::statistics(int device) {
    if (!state_->check_device(device).ok()) { return {}; }
    return state_->heaps[static_cast<std::size_t>(device)]->statistics();
}

void Allocator::reset_peak_statistics(int device) {
    if (!state_->check_device(device).ok()) { return; }
    state_->heaps[static_cast<std::size_t>(device)]->reset_peak_statistics();
}

void Allocator::reset_accumulated_statistics(int device) {
    if (!state_->check_device(device).ok()) { return; }
    state_->heaps[static_cast<std::size_t>(device)]->reset_accumulated_statistics();
}

std::vector<SegmentInfo> Allocator::snapshot(int device) {
    if (!state_->check_device(device).ok()) { return {}; }
    return state_->heaps[static_cast<std::size_t>(device)]->snapshot();
}

Strategy Allocator::strategy(int device) {
    if (!state_->check_device(device).ok()) { return strategy_of(state_->options); }
    return state_->heaps[static_cast<std::size_t>(device)]->strategy_kind();
}

Status Allocator::audit() {
    if (Status status = check_process(); !status.ok()) { return status; }
    for (auto& heap : state_->heaps) {
        if (Status status = heap->audit(); !status.ok()) { return status; }
    }
    return {};
}

}  // namespace gma
