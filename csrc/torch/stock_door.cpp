#include "torch/stock_door.h"

#include <stdexcept>
#include <type_traits>

#include "torch/door_errors.h"
#include "torch/process_allocator.h"
#include "torch/raise_out_of_memory.h"

using namespace gma;

static_assert(std::is_same_v<decltype(gma_malloc), TorchAllocate>);
static_assert(std::is_same_v<decltype(gma_free), TorchFree>);
static_assert(std::is_same_v<decltype(gma_init), void(int)>);
static_assert(std::is_same_v<decltype(gma_reset), void()>);
static_assert(std::is_same_v<decltype(gma_memory_fraction), void(double, int)>);
static_assert(std::is_same_v<decltype(gma_base_alloc), void*(void*, std::size_t*)>);
static_assert(std::is_same_v<decltype(gma_record_stream), void(void*, TorchStream)>);
static_assert(
    std::is_same_v<decltype(gma_begin_allocate_to_pool), void(int, TorchPool, TorchFilter)>);
static_assert(std::is_same_v<decltype(gma_end_allocate_to_pool), void(int, TorchPool)>);
static_assert(std::is_same_v<decltype(gma_release_pool), void(int, TorchPool)>);

namespace {

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
void* pointer_of(Address address) { return reinterpret_cast<void*>(address); }
PoolId pool_of(const TorchPool& pool) { return {pool.first, pool.second}; }

[[noreturn]] void raise(const Status& status) {
    if (status.code() == Code::OutOfMemory) { raise_out_of_memory(status.message()); }
    throw std::runtime_error(status.message());
}

// For hooks: calls `use` with the allocator and keeps what went wrong.
template <class Use>
void keep_errors(const char* call, Use use) noexcept {
    try {
        auto allocator = process_allocator();
        note_door_error(call, allocator ? use(**allocator) : allocator.status());
    } catch (const std::exception& error) {
        note_door_error(call, Status(Code::DriverFailed, error.what()));
    }
}

Status set_fraction(Allocator& allocator, double fraction, int device) {
    auto driver = process_driver();
    if (!driver) { return driver.status(); }
    auto properties = (*driver)->properties(device);
    if (!properties) { return properties.status(); }
    const double total = static_cast<double>(properties->total_bytes);
    return allocator.set_limit(device, static_cast<Bytes>(total * fraction));
}

}  // namespace

void* gma_malloc(std::size_t bytes, int device, TorchStream stream) {
    if (bytes == 0) { return nullptr; }
    Allocator* allocator = process_allocator_if_made();
    if (allocator == nullptr) {
        auto made = process_allocator();
        if (!made) { raise(made.status()); }
        allocator = *made;
    }
    auto address = allocator->allocate(device, bytes, stream);
    if (!address) { raise(address.status()); }
    return pointer_of(*address);
}

void gma_free(void* pointer, std::size_t, int, TorchStream) {
    Allocator* const allocator = process_allocator_if_made();
    if (pointer == nullptr || allocator == nullptr) { return; }
    const Status status = allocator->free(address_of(pointer));
    if (!status.ok()) { note_door_error("free", status); }
}

// Torch has started CUDA, so the allocator may be made: statistics have something to ask.
void gma_init(int) {
    keep_errors("init", [](Allocator&) { return Status(); });
}

void gma_reset() {
    Allocator* const allocator = process_allocator_if_made();
    if (allocator == nullptr) { return; }
    for (int device = 0; device < allocator->device_count(); ++device) {
        note_door_error("empty_cache", allocator->trim(device).status());
    }
}

void gma_memory_fraction(double fraction, int device) {
    keep_errors("set_per_process_memory_fraction",
                [&](Allocator& allocator) { return set_fraction(allocator, fraction, device); });
}

void* gma_base_alloc(void* pointer, std::size_t* bytes) {
    void* base = pointer;
    keep_errors("base_allocation", [&](Allocator& allocator) {
        auto found = allocator.base_allocation(address_of(pointer));
        if (!found) { return found.status(); }
        base = pointer_of(found->address);
        if (bytes != nullptr) { *bytes = found->bytes; }
        return Status();
    });
    return base;
}

void gma_record_stream(void* pointer, TorchStream stream) {
    Allocator* const allocator = process_allocator_if_made();
    if (pointer == nullptr || allocator == nullptr) { return; }
    note_door_error("record_stream", allocator->record_stream(address_of(pointer), stream));
}

void gma_begin_allocate_to_pool(int device, TorchPool pool, TorchFilter filter) {
    keep_errors("begin_allocate_to_pool", [&](Allocator& allocator) {
        auto takes = [filter = std::move(filter)](Stream stream) {
            return filter(static_cast<TorchStream>(stream));
        };
        return allocator.begin_pool(device, pool_of(pool), std::move(takes));
    });
}

void gma_end_allocate_to_pool(int device, TorchPool pool) {
    keep_errors("end_allocate_to_pool",
                [&](Allocator& allocator) { return allocator.end_pool(device, pool_of(pool)); });
}

void gma_release_pool(int device, TorchPool pool) {
    keep_errors("release_pool", [&](Allocator& allocator) {
        return allocator.release_pool(device, pool_of(pool));
    });
}
