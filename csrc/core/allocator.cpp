#include "core/allocator.h"

#include <unistd.h>

#include <string>

#include "base/format.h"
#include "core/address_map.h"
#include "core/device_heap.h"

namespace gma {

struct Allocator::State {
    State(Driver& driver_in, Options options_in)
        : driver(driver_in), options(std::move(options_in)), process(getpid()) {}

    Driver& driver;
    const Options options;
    const pid_t process;
    AddressMap addresses;
    OutOfMemoryCallbacks callbacks;
    std::vector<std::unique_ptr<DeviceHeap>> heaps;

    Status check_device(int device) const {
        if (device >= 0 && static_cast<std::size_t>(device) < heaps.size()) { return {}; }
        return {Code::InvalidValue, "there is no device " + std::to_string(device) + "; there are " +
                                        std::to_string(heaps.size())};
    }
};

namespace {

// Where an address lies: its device's heap and what the arena says starts there.
struct Place {
    DeviceHeap* heap = nullptr;
    std::uintptr_t tagged = 0;
};

}  // namespace

Allocator::Allocator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Allocator::~Allocator() = default;

Result<std::unique_ptr<Allocator>> Allocator::create(Driver& driver, const Options& options) {
    auto state = std::make_unique<State>(driver, options);
    if (!state->addresses.valid()) {
        return Status(Code::OutOfMemory, "no host memory for the address map");
    }
    for (int device = 0; device < driver.device_count(); ++device) {
        Result<DeviceProperties> properties = driver.properties(device);
        if (!properties) { return properties.status(); }
        state->heaps.push_back(std::make_unique<DeviceHeap>(
            driver, device, *properties, state->options, state->addresses, state->callbacks));
    }
    return std::unique_ptr<Allocator>(new Allocator(std::move(state)));
}

Result<Address> Allocator::allocate(int device, Bytes bytes, Stream stream) {
    if (bytes == 0) { return Address{0}; }
    if (Status status = state_->check_device(device); !status.ok()) { return status; }
    if (bytes >= kMaxRequestBytes) {
        return Status(Code::OutOfMemory,
                      "CUDA out of memory. Tried to allocate more than 1EB memory.");
    }
    return state_->heaps[static_cast<std::size_t>(device)]->allocate(bytes, stream);
}

namespace {

template <class Heaps>
Place place_of(AddressMap& addresses, Heaps& heaps, Address address) {
    if (Arena* arena = addresses.find(address); arena != nullptr) {
        return {heaps[static_cast<std::size_t>(arena->key().device)].get(),
                arena->tagged_start(address)};
    }
    for (auto& heap : heaps) {
        if (heap->owns(address)) { return {heap.get(), 0}; }
    }
    return {};
}

Status foreign(Address address) {
    char text[96];
    std::snprintf(text, sizeof(text), "address 0x%llx was not allocated by gpumem_alloc",
                  static_cast<unsigned long long>(address));
    return {Code::InvalidValue, text};
}

}  // namespace

Status Allocator::free(Address address) {
    if (address == 0) { return {}; }
    const Place place = place_of(state_->addresses, state_->heaps, address);
    return place.heap == nullptr ? foreign(address) : place.heap->free(address, place.tagged);
}

Status Allocator::record_stream(Address address, Stream stream) {
    if (address == 0) { return {}; }
    const Place place = place_of(state_->addresses, state_->heaps, address);
    return place.heap == nullptr ? foreign(address)
                                 : place.heap->record_stream(address, place.tagged, stream);
}

Result<BaseAllocation> Allocator::base_allocation(Address address) {
    const Place place = place_of(state_->addresses, state_->heaps, address);
    if (place.heap == nullptr) { return foreign(address); }
    return place.heap->base_allocation(address, place.tagged);
}

Status Allocator::pin(Address address) {
    const Place place = place_of(state_->addresses, state_->heaps, address);
    return place.heap == nullptr
               ? foreign(address)
               : place.heap->pin(address, place.tagged, DeviceHeap::Pin::Add);
}

Status Allocator::unpin(Address address) {
    const Place place = place_of(state_->addresses, state_->heaps, address);
    return place.heap == nullptr
               ? foreign(address)
               : place.heap->pin(address, place.tagged, DeviceHeap::Pin::Remove);
}

#define GMA_HEAP_OR_RETURN(heap, device)                                                  \
    if (Status device_status = state_->check_device(device); !device_status.ok()) {       \
        return device_status;                                                             \
    }                                                                                     \
    DeviceHeap& heap = *state_->heaps[static_cast<std::size_t>(device)]

Status Allocator::begin_pool(int device, PoolId pool, std::function<bool(Stream)> filter) {
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.begin_pool(pool, std::move(filter));
}

Status Allocator::end_pool(int device, PoolId pool) {
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.end_pool(pool);
}

Status Allocator::release_pool(int device, PoolId pool) {
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.release_pool(pool);
}

Result<Bytes> Allocator::trim(int device, Bytes bytes) {
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.trim(bytes);
}

Status Allocator::reserve(int device, Bytes bytes, Stream stream) {
    GMA_HEAP_OR_RETURN(heap, device);
    return heap.reserve(bytes, stream);
}

Status Allocator::set_limit(int device, Bytes limit_bytes) {
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
    for (auto& heap : state_->heaps) {
        if (Status status = heap->audit(); !status.ok()) { return status; }
    }
    return {};
}

}  // namespace gma
