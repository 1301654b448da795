// One device: its lock, its streams' slabs, frees that wait, pools, limit, statistics and the retry
// ladder, over one strategy.
//
//   a small request:  thread cache -> (lock) a new slab from the strategy
//   a large request:  (lock) strategy's cached blocks -> the ladder of retry_ladder.cpp
//   a free:           thread cache of its slab, or (lock) the strategy; behind fences if recorded
//
// Order of locks: the heap's, then a thread cache's. No driver call is made under a cache's lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/address_map.h"
#include "core/allocator.h"
#include "core/exports.h"
#include "core/ledger.h"
#include "core/listeners.h"
#include "core/pending_frees.h"
#include "core/pooled_strategy.h"
#include "core/redzones.h"
#include "core/regions.h"
#include "core/strategy.h"
#include "core/thread_cache.h"
#include "core/thread_registry.h"

namespace gma {

class DeviceHeap {
public:
    DeviceHeap(Driver& driver, int device, DeviceProperties properties, const Options& options,
               AddressMap& addresses, Listeners& listeners, const Regions& regions);
    DeviceHeap(const DeviceHeap&) = delete;
    DeviceHeap& operator=(const DeviceHeap&) = delete;
    ~DeviceHeap();

    // From the thread's own slabs, without the heap's lock; 0: allocate() has to see.
    Address take_small(Bytes bytes, Stream stream) {
        if (bytes > kSmallMaxBytes || !fast_path_open_.load(std::memory_order_relaxed)) {
            return 0;
        }
        ThreadCache* cache = find_thread_cache(id_, stream);
        if (cache == nullptr) [[unlikely]] { return 0; }
        const Address address = cache->take(size_class(bytes), bytes);
        if (cache->flush_due()) [[unlikely]] { flush(*cache); }
        return address;
    }
    // The block that this thread freed last, if it fits exactly; see Note [Parked blocks].
    Address take_parked(Bytes bytes, Stream stream) {
        if (!parking_open_.load(std::memory_order_relaxed)) { return 0; }
        ThreadCache* cache = find_thread_cache(id_, stream);
        if (cache == nullptr || !cache->has_parked(large_bytes(bytes)) ||
            !is_stream_of(*cache, stream)) {
            return 0;
        }
        return cache->take_parked(large_bytes(bytes), bytes);
    }
    Result<Address> allocate(Bytes bytes, Stream stream);
    // `tagged` is what the address map found: a slab (bit 0), a block, or 0. `observer`, or null,
    // is told as free_observed() says. In line: where it is null, nothing is left of it.
    [[gnu::always_inline]] Status free(Address address, std::uintptr_t tagged,
                                       EventSink* observer = nullptr) {
        if ((tagged & 1) != 0) [[likely]] {
            auto* slab = reinterpret_cast<Slab*>(tagged - 1);
            Slab* emptied = nullptr;
            const ThreadCache::Freed freed = slab->cache->put(slab, address, emptied, observer);
            if (freed == ThreadCache::Freed::Kept) [[likely]] { return {}; }
            return finish_small_free(freed, slab, address, emptied, observer);
        }
        if (tagged != 0 && parking_open_.load(std::memory_order_relaxed)) [[likely]] {
            auto* block = reinterpret_cast<Block*>(tagged);
            if (block->address == address && block->pin_count == 0 && !block->recorded &&
                park(block, observer)) [[likely]] {
                return {};
            }
        }
        return free_large(address, observer);
    }
    Status free_observed(Address address, std::uintptr_t tagged, EventSink& observer);
    Status record_stream(Address address, std::uintptr_t tagged, Stream stream);
    // Whether a block of this device starts at `address`, for addresses outside arenas.
    bool owns(Address address);
    // Small objects and slabs answer with their slab's arena.
    Result<BaseAllocation> base_allocation(Address address, std::uintptr_t tagged);
    enum class Pin : std::uint8_t { Add, Remove };
    Status pin(Address address, std::uintptr_t tagged, Pin change);
    Result<ExportedBlock> export_block(Address address, std::uintptr_t tagged);

    // device_heap_pools.cpp
    Status begin_pool(PoolId pool, std::function<bool(Stream)> filter);
    Status end_pool(PoolId pool);
    Status retain_pool(PoolId pool, std::shared_ptr<SegmentProvider> provider);
    Status release_pool(PoolId pool);
    std::uint64_t pool_use_count(PoolId pool);
    Status set_pool_use_on_oom(PoolId pool, bool use);
    Status set_pool_no_split(PoolId pool);
    Result<Bytes> trim_pool(PoolId pool);
    std::vector<PoolBytes> pool_bytes();
    Result<std::vector<PoolBlock>> pool_state(PoolId pool);
    Result<PoolChange> restore_pool(PoolId pool, const std::vector<PoolBlock>& state);
    void begin_capture();
    void end_capture();
    Result<Address> allocate_at(Bytes bytes, Stream stream, Address at);

    Result<Bytes> trim(Bytes bytes);
    Status reserve(Bytes bytes, Stream stream);
    Status set_limit(Bytes limit_bytes);
    Bytes limit();
    Bytes largest_available_bytes();

    DeviceStatistics statistics();
    std::uint64_t statistics_version() const {
        return changed_.load(std::memory_order_relaxed)
                   ? 0
                   : statistics_version_.load(std::memory_order_relaxed);
    }
    void reset_peak_statistics();
    void reset_accumulated_statistics();
    std::vector<SegmentInfo> snapshot();
    Strategy strategy_kind();
    Status audit();

    // device_heap_events.cpp. The allocated block as its free will be noted: as requested only when
    // it has to wait for streams. Empty: no block is allocated there.
    std::optional<TraceRecord> describe(Address address, std::uintptr_t tagged);
    // Whether a private pool was ever begun: allocations have to be asked for theirs.
    bool has_pools() const { return has_pools_.load(std::memory_order_relaxed); }

    // device_heap_isolation.cpp
    Status open_region(Isolation level);
    void close_region();
    // A free of an address that no device has allocated, which this one may have known.
    bool knew(Address address);
    bool watches();  // tensors of a checked level were allocated here
    Status refuse_free(Address address);
    IsolationReport isolation_report();
    std::vector<LedgerEntry> ledger();
    // Waits for the device and checks every live tensor of a checked level; how many were checked.
    Result<std::int64_t> check_now();

    // A thread that exits gives its caches back.
    void return_cache(ThreadCache* cache);
    std::uint64_t id() const { return id_; }

private:
    struct Route {
        PoolId pool;
        std::function<bool(Stream)> filter;
    };
    // Kept after the last use until its gauge is reset.
    struct PrivatePool {
        std::uint64_t use_count = 0;  // begun or retained, and not released, as often
        bool use_on_oom = false;
        PooledGauge reserved_bytes;
    };

    Result<Address> allocate_large(Bytes bytes, Stream stream);
    Result<Address> serve_large_locked(const Request& request, std::unique_lock<std::mutex>& lock,
                                       Bytes requested_bytes);
    // device_heap_small.cpp
    Result<Address> allocate_small(Bytes bytes, Stream stream);
    Address take_object(ThreadCache& cache, Bytes bytes);
    Result<ThreadCache*> borrow_cache(Stream stream);
    Result<Request> request_locked(Bytes bytes, Stream stream);
    bool captures_locked(Stream stream);
    bool others_capture_locked(Stream stream, PoolId pool);
    PoolId pool_for_locked(Stream stream) const;
    // While a pool is begun, a capture may be under way.
    bool may_capture_locked() const { return !routes_.empty() || capture_count_ > 0; }
    void tell_limit_locked();
    bool capture_under_way_locked();
    PendingFrees::Defer deferral_locked() const {
        return may_capture_locked() ? PendingFrees::Defer::Yes : PendingFrees::Defer::No;
    }
    // Of a recorded object: told as a request, and its end by itself. A deferred free waits even
    // where no stream used the object, as of one that is isolated or exported.
    bool free_waits_locked(Address address) const {
        return pending_.waits(address) || deferral_locked() == PendingFrees::Defer::Yes;
    }
    void update_small_path_locked() {
        small_path_open_ = kind_ == Strategy::Paged && !may_capture_locked();
        fast_path_open_ = small_path_open_.load() && level_ == Isolation::Off && !regions_.any();
        update_parking_locked();
    }

    // device_heap_isolation.cpp
    Isolation level_of(PoolId pool) const;
    Bytes with_redzone(Bytes bytes, Isolation level) const {
        return level == Isolation::Packed ? bytes + redzone_bytes_ : bytes;
    }
    Bytes request_bytes_locked(Bytes bytes, PoolId pool) const;
    void note_allocated_locked(Block* block, PoolId pool);
    void note_object_locked(Slab* slab, Address address, Bytes requested_bytes);
    void note_freed_locked(Address address);
    // strict: the host waits for the recorded streams too, so that a later use faults for certain.
    bool waits_at_free_locked(Address address) const;
    Status refuse_free_locked(Address address);
    Status raise_violation_locked();
    bool is_checked(const PendingFree& free) const;
    void finish_free_locked(const PendingFree& free);
    void hold_for_check_locked(const PendingFree& free);
    void flush_redzones_locked();
    void reuse_locked(const PendingFree& free);
    std::vector<ByteRange> live_gaps_locked(const LedgerEntry& entry);
    Status look_at_locked(const std::vector<ByteRange>& ranges, std::vector<Finding>& findings);
    Status check_free_locked();
    Status audit_ledger_locked();
    std::unique_ptr<HeapStrategy> make_isolated(Isolation level, PoolId pool);
    void resume_locked();
    bool pool_in_use_locked(PoolId pool) const;
    void count_pools_locked();
    Block* borrow_from_pools_locked(const Request& request);
    Status finish_pending_locked(PoolId pool);
    Status check_state_locked(PoolId pool, const std::vector<PoolBlock>& state) const;
    Status prepare_restore_locked(PoolId pool, const std::vector<PoolBlock>& state);
    Status fill_place_locked(const Request& request);

    // retry_ladder.cpp
    enum class Ladder : std::uint8_t { First, AfterCallbacks };
    Result<Block*> climb_locked(const Request& request, Ladder attempt);
    Result<Block*> try_locked(const Request& request, Effort effort);
    Result<Block*> wait_for_pending_locked(const Request& request);
    Result<Block*> obtain_locked(const Request& request, std::unique_lock<std::mutex>& lock,
                                 Bytes requested_bytes);
    bool run_callbacks(const OutOfMemoryReport& report);
    OutOfMemoryReport report_locked(const Request& request, Bytes requested_bytes,
                                    std::string cause);
    Status fall_back_to_split_locked(const Status& why);

    Status finish_small_free(ThreadCache::Freed freed, Slab* slab, Address address, Slab* emptied,
                             EventSink* observer);
    TraceRecord free_record(const Block& block) const;
    // What a large request takes of its arena.
    static Bytes large_bytes(Bytes bytes) {
        return std::max(round_up(bytes, kUnitBytes), Arena::kGranuleBytes);
    }
    // Only memory of the default pool, whose stream the thread knows; and not what would not be
    // taken again.
    bool park(Block* block, EventSink* observer) {
        if (block->arena == nullptr) { return false; }     // a pool's, from its provider
        if (block->borrower != nullptr) { return false; }  // its lender would wait for nobody
        if (block->has_free_neighbour() && block->found_at_layout() != block->arena->layout()) {
            return false;
        }
        const ArenaKey& key = block->arena->key();
        if (key.pool != PoolId{}) { return false; }
        ThreadCache* cache = find_thread_cache(id_, key.stream);
        if (cache == nullptr || cache->key().stream_id != key.stream_id) { return false; }
        if (block->set_parked(true)) [[unlikely]] { return false; }  // freed twice
        if (cache->park(block, observer)) [[likely]] { return true; }
        block->set_parked(false);
        return false;
    }
    // Relaxed: an ordered store would cost more than the counting itself.
    void note_change() { changed_.store(true, std::memory_order_relaxed); }
    bool is_stream_of(const ThreadCache& cache, Stream stream);
    void update_parking_locked();
    void finish_large_free_locked(Block* block);
    void count_retaken_locked(const CacheDelta& delta);
    Status free_large(Address address, EventSink* observer);
    Block* live_block_locked(Address address);
    Status free_recorded_object(Slab* slab, Address address, EventSink* observer);
    bool live_object_locked(const Slab* slab, Address address) const;
    void complete_locked(const std::vector<PendingFree>& done);
    void return_object_locked(Slab* slab, Address address);
    void return_slab_locked(Slab* slab);
    void drain_caches_locked();
    void give_locked(Block* block);
    void settle_locked();
    void poll_locked();
    void flush(ThreadCache& cache);
    void flush_locked(ThreadCache& cache);
    void flush_own_locked();
    void flush_for_request_locked();
    void count_large_locked(const Block* block, int sign);
    void count_active_locked(Bytes bytes, StatPool pool, int sign);
    void count_reserved_locked();
    std::unique_ptr<HeapStrategy> make_strategy(Strategy kind);
    Block* block_locked(Address address, std::uintptr_t tagged);
    void note_completed(const PendingFree& free);

    Driver& driver_;
    const int device_;
    const DeviceProperties properties_;
    const Options& options_;
    AddressMap& addresses_;
    Listeners& listeners_;
    const std::uint64_t id_;  // no other heap of the process ever has it

    const Regions& regions_;
    const Isolation level_;  // of everything outside regions
    const Bytes redzone_bytes_;
    const bool raises_;  // violations make the next allocation fail

    std::mutex lock_;
    Strategy kind_;
    Ledger ledger_;
    Redzones redzones_{driver_, device_, ledger_};
    std::uint64_t raised_count_ = 0;  // violations that an allocation has failed with
    std::unique_ptr<PooledStrategy> strategy_;
    PendingFrees pending_;
    std::vector<Route> routes_;
    std::map<PoolId, PrivatePool> pools_;
    std::uint64_t counted_layout_ = 0;     // of the strategy, when pools were counted last
    std::uint64_t capture_count_ = 0;      // captures that the caller told of
    std::multimap<Address, Block*> pins_;  // one entry for each pin
    Exports exports_{driver_, device_};
    std::vector<Stream> pool_streams_;  // that have used a pool since the first route was begun
    std::unordered_map<Stream, std::uint64_t> pool_stream_ids_;  // as last asked, for captures
    std::atomic<bool> has_pools_{false};
    // Parking is closed while chunks are away from home and so few blocks are left that the last
    // one may be parked: nobody would see that nothing is live (Note [Homes]).
    std::atomic<bool> parking_open_{false};
    std::int64_t large_live_count_ = 0;         // parked ones among them
    std::atomic<bool> small_path_open_{false};  // slabs in use and no route begun
    std::atomic<bool> fast_path_open_{false};   // and nothing is isolated: no lock needed
    // Only small objects are left of memory that has moved: their slabs are not kept when empty.
    std::atomic<bool> keep_no_slabs_{false};
    Bytes slab_bytes_ = 0;
    std::vector<std::unique_ptr<ThreadCache>> caches_;
    std::multimap<ArenaKey, ThreadCache*> idle_caches_;
    Bytes limit_bytes_;
    bool mapped_once_ = false;  // a mapping call has succeeded: no fallback any more
    DeviceStatistics statistics_;
    std::atomic<bool> changed_{true};  // something is to be counted since statistics()
    std::atomic<std::uint64_t> statistics_version_{0};
};

}  // namespace gma
