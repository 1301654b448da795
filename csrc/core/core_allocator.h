// The one implementation of the interface of allocator.h: finds the device's heap, and notes events
// for the ring.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/address_map.h"
#include "core/allocator.h"
#include "core/device_heap.h"
#include "core/fork_guard.h"
#include "core/imports.h"
#include "core/listeners.h"
#include "core/regions.h"

namespace gma {

class CoreAllocator final : public Allocator {
public:
    CoreAllocator(Driver& driver, const Options& options) : driver_(driver), options_(options) {}
    ~CoreAllocator() override;
    // Asks the driver for its devices; the rest may be called once it has succeeded.
    Status start();

    Result<Address> allocate(int device, Bytes bytes, Stream stream) override;
    Result<Address> allocate_at(int device, Bytes bytes, Stream stream, Address at) override;
    Status free(Address address) override;
    Status free_observed(Address address, EventSink& observer) override;
    Status record_stream(Address address, Stream stream) override;
    std::optional<TraceRecord> describe(Address address) override;
    Result<BaseAllocation> base_allocation(Address address) override;
    Status pin(Address address) override;
    Status unpin(Address address) override;
    Status check_may_leave(Address address) override;
    Result<ExportedBlock> export_block(Address address) override;
    Result<Address> import_block(int device, const std::vector<ExportedPiece>& pieces) override;
    Status drop_import(Address address) override;

    Status begin_pool(int device, PoolId pool, std::function<bool(Stream)> filter) override;
    Status end_pool(int device, PoolId pool) override;
    Status retain_pool(int device, PoolId pool, std::shared_ptr<SegmentProvider> provider) override;
    Status release_pool(int device, PoolId pool) override;
    std::uint64_t pool_use_count(int device, PoolId pool) override;
    Status set_pool_use_on_oom(int device, PoolId pool, bool use) override;
    Status set_pool_no_split(int device, PoolId pool) override;
    Result<Bytes> trim_pool(int device, PoolId pool) override;
    std::vector<PoolBytes> pool_bytes(int device) override;
    Result<std::vector<PoolBlock>> pool_state(int device, PoolId pool) override;
    Result<PoolChange> restore_pool(int device, PoolId pool,
                                    const std::vector<PoolBlock>& state) override;
    void begin_capture(int device) override;
    void end_capture(int device) override;

    Status begin_region(Isolation level, bool all_threads) override;
    Status end_region(bool all_threads) override;
    IsolationReport isolation_report(int device) override;
    std::vector<LedgerEntry> ledger(int device) override;
    Result<std::int64_t> check_isolation(int device) override;

    Result<Bytes> trim(int device, Bytes bytes) override;
    Status reserve(int device, Bytes bytes, Stream stream) override;
    Status set_limit(int device, Bytes limit_bytes) override;
    Bytes limit(int device) override;
    Bytes largest_available_bytes(int device) override;
    void add_out_of_memory_callback(OutOfMemoryCallback callback) override;

    int device_count() const override { return static_cast<int>(heaps_.size()); }
    const Options& options() const override { return options_; }
    DeviceStatistics statistics(int device) override;
    std::uint64_t statistics_version(int device) const override {
        return usable(device) ? heaps_[static_cast<std::size_t>(device)]->statistics_version() : 0;
    }
    void reset_peak_statistics(int device) override;
    void reset_accumulated_statistics(int device) override;
    std::vector<SegmentInfo> snapshot(int device) override;
    EventRing& events() override { return listeners_.ring; }
    void set_event_sink(EventSink* sink) override {
        listeners_.sink.store(sink, std::memory_order_release);
    }
    Strategy strategy(int device) override;
    Status check_process() const override { return fork_guard_.check(); }
    Status audit() override;

private:
    // Where an address lies: its device's heap and what the arena says starts there.
    struct Place {
        DeviceHeap* heap = nullptr;
        std::uintptr_t tagged = 0;
    };
    [[gnu::always_inline]] Place place_of(Address address) {
        if (Arena* arena = addresses_.find(address); arena != nullptr) [[likely]] {
            return {&heap_of(arena->key().device), arena->tagged_start(address)};
        }
        return search_heaps(address);
    }
    Place search_heaps(Address address);
    Result<Place> known_place(Address address);
    // What may use a device: it is there, and it is this process's.
    bool usable(int device) const {
        return static_cast<std::size_t>(device) < heaps_.size() && !fork_guard_.forked();
    }
    Status check_device(int device) const;
    static Status foreign(Address address);
    Status refuse_free(Address address);
    static Status too_large();
    // Answers with the device's heap, or with why it cannot be asked.
    template <class Answer, class Ask>
    Answer ask(int device, Ask question) {
        if (Status status = check_device(device); !status.ok()) { return status; }
        return question(heap_of(device));
    }
    DeviceHeap& heap_of(int device) { return *heaps_[static_cast<std::size_t>(device)]; }
    void note_blocks(int device, PoolId pool, const std::vector<PoolBlock>& blocks, Action action);
    Status free_for_ring(const Place& place, Address address, EventSink* observer);
    void note_allocation(DeviceHeap& heap, int device, Bytes bytes, Stream stream,
                         const Result<Address>& address);

    Driver& driver_;
    const Options options_;
    const ForkGuard fork_guard_;
    Listeners listeners_;
    Regions regions_;
    AddressMap addresses_;
    std::vector<std::unique_ptr<DeviceHeap>> heaps_;
    Imports imports_{driver_};
};

}  // namespace gma
