// The slabs of one thread for one stream: small requests are served here without meeting others.
//
// A thread borrows its caches from the device's heap and gives them back when it exits; the next
// thread that needs one for the stream gets it with its slabs. Any thread may free an object: it
// takes the lock of the cache that owns the slab. The heap's lock is taken before this one, never
// while it is held.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/arena.h"
#include "core/slab.h"
#include "core/spin_lock.h"

namespace gma {

// What happened since the last flush into the device's statistics.
struct SmallDelta {
    struct Sum {
        std::int64_t in = 0, out = 0, peak = 0;
        void add(std::int64_t amount) {
            in += amount;
            if (in - out > peak) { peak = in - out; }
        }
        void subtract(std::int64_t amount) { out += amount; }
        std::int64_t net() const { return in - out; }
    };
    Sum count, bytes, requested_bytes;
};

class ThreadCache {
public:
    // Unflushed bytes at most: the error of statistics(), per thread, until it flushes.
    static constexpr std::int64_t kFlushBytes = 1 << 20;

    // While `keep_none` is set, empty slabs are given back at once.
    ThreadCache(ArenaKey key, const std::atomic<bool>& keep_none)
        : key_(key), keep_none_(keep_none) {}

    enum class Freed : std::uint8_t { Kept, SlabEmpty, Recorded, NotAllocated };

    const ArenaKey& key() const { return key_; }

    // 0 when no slab of the class has room.
    Address take(int class_index, Bytes requested_bytes);
    // Gives an object back. SlabEmpty: `emptied` left the cache and is the caller's to give back.
    // Recorded: nothing was done, the free has to wait for streams.
    Freed put(Slab* slab, Address address, Slab*& emptied);
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
    struct ObjectInfo {
        Bytes requested_bytes = 0;
        bool allocated = false;
        bool recorded = false;
    };
    ObjectInfo info(const Slab* slab, Address address);

    SmallDelta take_delta();
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
        Slab* current = nullptr;                 // the lowest slab with room, if any has
        std::set<Slab*, LowerBase> with_room;    // the others with room
        std::set<Slab*, LowerBase> slabs;        // all
    };
    Freed return_object(Slab* slab, std::uint32_t index, Slab*& emptied);
    void remove(Bin& bin, Slab* slab);

    const ArenaKey key_;
    const std::atomic<bool>& keep_none_;
    SpinLock lock_;
    SmallDelta delta_;
    std::atomic<bool> flush_due_{false};
    std::array<Bin, kClassCount> bins_;
};

}  // namespace gma
