#include "core/thread_cache.h"

namespace gma {

Slab* ThreadCache::next_with_room(Bin& bin) {
    if (bin.with_room.empty()) { return nullptr; }
    bin.current = *bin.with_room.begin();
    bin.with_room.erase(bin.with_room.begin());
    return bin.current;
}

ThreadCache::Freed ThreadCache::put_pending(Slab* slab, Address address, Slab*& emptied) {
    std::lock_guard guard(lock_);
    const std::uint32_t index = slab->index_of(address);
    Slab::clear(slab->recorded_bits, index);
    return return_object(slab, index, emptied);
}

// Keeps `current` the lowest slab with room, and one empty slab a class at most.
ThreadCache::Freed ThreadCache::settle(Bin& bin, Slab* slab, bool was_full, Slab*& emptied) {
    if (was_full && slab != bin.current) {
        if (bin.current->full() || slab->base < bin.current->base) {
            if (!bin.current->full()) { bin.with_room.insert(bin.current); }
            bin.current = slab;
        } else {
            bin.with_room.insert(slab);
        }
    }
    if (!slab->empty() || stays_empty(bin, slab)) { return Freed::Kept; }
    remove(bin, slab);
    emptied = slab;
    return Freed::SlabEmpty;
}

void ThreadCache::add(Slab* slab) {
    std::lock_guard guard(lock_);
    Bin& bin = bins_[static_cast<std::size_t>(slab->size_class)];
    bin.slabs.insert(slab);
    if (bin.current == nullptr || bin.current->full()) {
        bin.current = slab;
    } else {
        bin.with_room.insert(slab);
    }
}

std::vector<Slab*> ThreadCache::drain() {
    std::lock_guard guard(lock_);
    std::vector<Slab*> drained;
    for (Bin& bin : bins_) {
        for (auto it = bin.slabs.begin(); it != bin.slabs.end();) {
            Slab* slab = *it++;
            if (!slab->empty()) { continue; }
            remove(bin, slab);
            drained.push_back(slab);
        }
    }
    return drained;
}

void ThreadCache::remove(Bin& bin, Slab* slab) {
    bin.slabs.erase(slab);
    if (slab != bin.current) {
        bin.with_room.erase(slab);
    } else if (!bin.with_room.empty()) {
        bin.current = *bin.with_room.begin();
        bin.with_room.erase(bin.with_room.begin());
    } else {
        bin.current = bin.slabs.empty() ? nullptr : *bin.slabs.begin();  // a full one, or none
    }
}

ThreadCache::Recording ThreadCache::set_recorded(Slab* slab, Address address) {
    std::lock_guard guard(lock_);
    const std::uint32_t index = slab->index_of(address);
    if (index == slab->object_count || Slab::test(slab->free_bits, index)) {
        return Recording::NotAllocated;
    }
    Slab::set(slab->recorded_bits, index);
    return Recording::Done;
}

void ThreadCache::clear_recorded(Slab* slab, Address address) {
    std::lock_guard guard(lock_);
    Slab::clear(slab->recorded_bits, slab->index_of(address));
}

bool ThreadCache::count_recorded_free(Slab* slab, Address address) {
    std::lock_guard guard(lock_);
    const std::uint32_t index = slab->index_of(address);
    if (index == slab->object_count || Slab::test(slab->free_bits, index)) { return false; }
    count_free(slab, index);
    return true;
}

Bytes ThreadCache::requested_bytes(const Slab* slab, Address address) {
    std::lock_guard guard(lock_);
    const std::uint32_t index = slab->index_of(address);
    return index == slab->object_count ? 0 : slab->object_bytes - slab->unused_bytes[index];
}

ThreadCache::ObjectInfo ThreadCache::info(const Slab* slab, Address address) {
    std::lock_guard guard(lock_);
    const std::uint32_t index = slab->index_of(address);
    if (index == slab->object_count || Slab::test(slab->free_bits, index)) { return {}; }
    return {slab->object_bytes - slab->unused_bytes[index], true,
            Slab::test(slab->recorded_bits, index)};
}

Block* ThreadCache::unpark() {
    if (parked_bytes_.load(std::memory_order_relaxed) == 0) { return nullptr; }
    std::lock_guard guard(lock_);
    parked_bytes_.store(0, std::memory_order_relaxed);
    return std::exchange(parked_, nullptr);
}

// All small objects of the delta came and went while the block was parked: park() sees to it.
void ThreadCache::come_back(const Block& block, StatPool pool) {
    const bool is_small = pool == StatPool::Small;
    delta_.count.come_back(1, is_small);
    delta_.bytes.come_back(static_cast<std::int64_t>(block.bytes), is_small);
    delta_.requested_bytes.come_back(static_cast<std::int64_t>(block.requested_bytes), is_small);
}

CacheDelta ThreadCache::take_delta() {
    std::lock_guard guard(lock_);
    flush_due_.store(false, std::memory_order_relaxed);
    // A block parked after unpark() stays to be counted, and statistics() may be past its look.
    const bool has_more = parked_ != nullptr;
    dirty_.store(has_more, std::memory_order_relaxed);
    if (has_more) { changed_.store(true, std::memory_order_relaxed); }
    return std::exchange(delta_, CacheDelta{});
}

}  // namespace gma
