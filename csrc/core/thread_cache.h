// The slabs of one thread for one stream: small requests are served here without meeting others.
//
// A thread borrows its caches from the device's heap and gives them back when it exits; the next
// thread that needs one for the stream gets it with its slabs. Any thread may free an object: it
// takes the lock of the cache that owns the slab. The heap's lock is taken before this one, never
// while it is held.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/slab.h"
#include "core/spin_lock.h"
#include "core/statistics.h"

namespace gma {

// What happened since the last flush into the device's statistics.
struct CacheDelta {
    struct Sum {
        std::int64_t in = 0, out = 0, peak = 0;
        // The peaks until a parked block came back, of all and of the small pool.
        std::int64_t peak_before = 0, small_peak_before = 0;
        void add(std::int64_t amount) {
            in += amount;
            if (in - out > peak) { peak = in - out; }
        }
        void subtract(std::int64_t amount) { out += amount; }
        std::int64_t net() const { return in - out; }
        // So far `amount` was not held, which from now on is as if it had been held all the time.
        void come_back(std::int64_t amount, bool in_small_pool) {
            peak_before = peak - amount;
            small_peak_before = in_small_pool ? peak - amount : peak;
            peak = net();
        }
    };
    Sum count, bytes, requested_bytes;  // small objects
    struct Retaken {
        std::int64_t count = 0, bytes = 0;
        Sum requested_bytes;
    };
    std::array<Retaken, 3> retaken;  // parked blocks, by StatPool: freed and allocated again
    bool has_retaken = false;
};

class ThreadCache {
public:
    // Unflushed bytes at most: the error of statistics(), per thread, until it flushes.
    static constexpr std::int64_t kFlushBytes = 1 << 20;

    // While `keep_none` is set, empty slabs are given back at once. `changed` is set with
    // everything that is to be counted.
    ThreadCache(ArenaKey key, const std::atomic<bool>& keep_none, std::atomic<bool>& changed)
        : key_(key), keep_none_(keep_none), changed_(changed) {}

    enum class Freed : std::uint8_t { Kept, SlabEmpty, Recorded, NotAllocated };

    const ArenaKey& key() const { return key_; }

    // 0 when no slab of the class has room.
    Address take(int class_index, Bytes requested_bytes);
    // Gives an object back. SlabEmpty: `emptied` left the cache and is the caller's to give back.
    // Recorded: nothing was done, the free has to wait for streams. NotAllocated: nor was it.
    // Otherwise `observer`, or null, is told before anybody else can have the object.
    Freed put(Slab* slab, Address address, Slab*& emptied, EventSink* observer = nullptr);
    // A pending object's streams are done: like put(), but it was counted as freed before.
    Freed put_pending(Slab* slab, Address address, Slab*& emptied);
    void add(Slab* slab);
    // Slabs without an allocated object leave the cache.
    std::vector<Slab*> drain();

    enum class Recording : std::uint8_t { Done, NotAllocated };
    Recording set_recorded(Slab* slab, Address address);
    void clear_recorded(Slab* slab, Address address);
    // Counts a recorded object as freed; false if it is not allocated.
    bool count_recorded_free(Slab* slab, Address address);
    Bytes requested_bytes(const Slab* slab, Address address);
    // What is told of the free of an object or of a parked block.
    TraceRecord free_record(Address address, Bytes requested_bytes) const {
        TraceRecord record;
        record.address = address;
        record.bytes = requested_bytes;
        record.stream = reinterpret_cast<std::uintptr_t>(key_.stream);
        record.device = static_cast<std::int16_t>(key_.device);
        record.action = Action::Free;
        return record;
    }
    struct ObjectInfo {
        Bytes requested_bytes = 0;
        bool allocated = false;
        bool recorded = false;
    };
    ObjectInfo info(const Slab* slab, Address address);

    // Note [Parked blocks]. A large block that this thread frees is not given back at once: it is
    // parked, and the next request of its size on its stream gets it again, without the device's
    // lock, where the search would find the same place. Memory then lies as if the block had been
    // given back. At most one is parked in a cache, and every look at the device as a whole (a
    // request that the thread does not serve itself, statistics, trimming) gives it back first.
    // false: another one is parked, or small objects are to be counted before.
    bool park(Block* block, EventSink* observer);
    bool has_parked(Bytes bytes) const {
        return parked_bytes_.load(std::memory_order_relaxed) == bytes;
    }
    bool has_any_parked() const { return parked_bytes_.load(std::memory_order_relaxed) != 0; }
    // The parked block if it has exactly this size, else 0.
    Address take_parked(Bytes bytes, Bytes requested_bytes);
    // Takes the parked block out, for the heap to give back.
    Block* unpark();

    // Whether there is anything to flush: a delta or a parked block.
    bool dirty() const { return dirty_.load(std::memory_order_relaxed); }
    CacheDelta take_delta();
    bool flush_due() const { return flush_due_.load(std::memory_order_relaxed); }
    template <class Visit>
    void for_each_slab(Visit&& visit) {
        std::lock_guard guard(lock_);
        for (Bin& bin : bins_) {
            for (Slab* slab : bin.slabs) { visit(slab); }
        }
    }

private:
    struct LowerBase {
        bool operator()(const Slab* a, const Slab* b) const { return a->base < b->base; }
    };
    struct Bin {
        Slab* current = nullptr;               // the lowest slab with room, if any has
        std::set<Slab*, LowerBase> with_room;  // the others with room
        std::set<Slab*, LowerBase> slabs;      // all
    };
    // Only a class's current slab is kept when it is empty, and not even that with keep_none_.
    bool stays_empty(const Bin& bin, const Slab* slab) const {
        return slab == bin.current && !keep_none_.load(std::memory_order_relaxed);
    }
    // The search would find the block's own place: the arena said so and has not changed since, or
    // the block joins no neighbour and no lower free block has its size.
    static bool stays_best(const Block& block) {
        if (block.found_at_layout() == block.arena->layout()) { return true; }
        return !block.has_free_neighbour() &&
               !block.arena->free_blocks().lowest().may_be_below(block.bytes, block.address);
    }
    void count_free(const Slab* slab, std::uint32_t index) {
        note_change();
        delta_.count.subtract(1);
        delta_.bytes.subtract(slab->object_bytes);
        delta_.requested_bytes.subtract(slab->object_bytes - slab->unused_bytes[index]);
    }
    void come_back(const Block& block, StatPool pool);
    Slab* next_with_room(Bin& bin);
    Freed return_object(Slab* slab, std::uint32_t index, Slab*& emptied);
    Freed settle(Bin& bin, Slab* slab, bool was_full, Slab*& emptied);
    void remove(Bin& bin, Slab* slab);

    const ArenaKey key_;
    void note_change() {
        if (dirty_.load(std::memory_order_relaxed)) { return; }
        dirty_.store(true, std::memory_order_relaxed);
        changed_.store(true, std::memory_order_relaxed);
    }

    const std::atomic<bool>& keep_none_;
    std::atomic<bool>& changed_;  // of the whole device
    std::atomic<bool> dirty_{false};
    SpinLock lock_;
    CacheDelta delta_;
    std::atomic<Bytes> parked_bytes_{0};  // of parked_, so that others can be asked without a lock
    Block* parked_ = nullptr;
    std::atomic<bool> flush_due_{false};
    std::array<Bin, kClassCount> bins_;
};

// The hits, which take nanoseconds, are inline; what changes a class's lists is not.

inline Address ThreadCache::take(int class_index, Bytes requested_bytes) {
    const SpinLock::Guard guard(lock_);
    Bin& bin = bins_[static_cast<std::size_t>(class_index)];
    Slab* slab = bin.current;
    if (slab == nullptr || slab->full()) [[unlikely]] {
        slab = next_with_room(bin);
        if (slab == nullptr) { return 0; }
    }
    const std::uint32_t index = slab->take();
    slab->unused_bytes[index] = static_cast<std::uint16_t>(slab->object_bytes - requested_bytes);
    note_change();
    delta_.count.add(1);
    delta_.bytes.add(slab->object_bytes);
    delta_.requested_bytes.add(static_cast<std::int64_t>(requested_bytes));
    if (delta_.bytes.net() > kFlushBytes) [[unlikely]] {
        flush_due_.store(true, std::memory_order_relaxed);
    }
    return slab->address_of(index);
}

[[gnu::always_inline]] inline ThreadCache::Freed ThreadCache::put(Slab* slab, Address address,
                                                                  Slab*& emptied,
                                                                  EventSink* observer) {
    const SpinLock::Guard guard(lock_);
    const std::uint32_t index = slab->index_of(address);
    if (index == slab->object_count || Slab::test(slab->free_bits, index)) [[unlikely]] {
        return Freed::NotAllocated;
    }
    if (Slab::test(slab->recorded_bits, index)) [[unlikely]] { return Freed::Recorded; }
    if (observer != nullptr) {
        observer->note(free_record(address, slab->object_bytes - slab->unused_bytes[index]));
    }
    count_free(slab, index);
    if (delta_.bytes.net() < -kFlushBytes) [[unlikely]] {
        flush_due_.store(true, std::memory_order_relaxed);
    }
    return return_object(slab, index, emptied);
}

inline bool ThreadCache::park(Block* block, EventSink* observer) {
    const SpinLock::Guard guard(lock_);
    if (parked_ != nullptr || delta_.count.in != 0 || delta_.count.out != 0) { return false; }
    if (observer != nullptr) { observer->note(free_record(block->address, block->requested())); }
    note_change();
    parked_ = block;
    parked_bytes_.store(block->bytes, std::memory_order_relaxed);
    return true;
}

inline Address ThreadCache::take_parked(Bytes bytes, Bytes requested_bytes) {
    const SpinLock::Guard guard(lock_);
    Block* const block = parked_;
    if (block == nullptr || block->bytes != bytes || !stays_best(*block)) { return 0; }
    const StatPool pool = stat_pool(requested_bytes);
    if (pool != stat_pool(block->requested_bytes)) { return 0; }
    note_change();
    parked_ = nullptr;
    parked_bytes_.store(0, std::memory_order_relaxed);
    CacheDelta::Retaken& retaken = delta_.retaken[static_cast<std::size_t>(pool)];
    ++retaken.count;
    retaken.bytes += static_cast<std::int64_t>(bytes);
    retaken.requested_bytes.subtract(static_cast<std::int64_t>(block->requested_bytes));
    retaken.requested_bytes.add(static_cast<std::int64_t>(requested_bytes));
    delta_.has_retaken = true;
    block->set_requested(requested_bytes);
    if (delta_.count.in != 0 || delta_.count.out != 0) [[unlikely]] { come_back(*block, pool); }
    block->set_parked(false);
    return block->address;
}

[[gnu::always_inline]] inline ThreadCache::Freed ThreadCache::return_object(Slab* slab,
                                                                            std::uint32_t index,
                                                                            Slab*& emptied) {
    Bin& bin = bins_[static_cast<std::size_t>(slab->size_class)];
    const bool was_full = slab->full();
    slab->put(index);
    if (was_full || (slab->empty() && !stays_empty(bin, slab))) [[unlikely]] {
        return settle(bin, slab, was_full, emptied);
    }
    return Freed::Kept;
}

}  // namespace gma
