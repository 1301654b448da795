// Small objects: the slabs of each thread's cache, and what their frees ask of the device.
#include "core/device_heap.h"

namespace gma {

// The thread has no slab with room: a new one, cut from the same blocks as large requests.
Result<Address> DeviceHeap::allocate_small(Bytes bytes, Stream stream) {
    if (raises_) {
        const std::lock_guard guard(lock_);
        if (Status status = raise_violation_locked(); !status.ok()) { return status; }
    }
    Result<ThreadCache*> cache = borrow_cache(stream);
    if (!cache) { return cache.status(); }
    const int class_index = size_class(with_redzone(bytes, level_));
    if (Address address = take_object(**cache, bytes); address != 0) { return address; }
    {
        std::unique_lock lock(lock_);
        Request request;
        request.bytes = Slab::kBytes;
        request.alignment = Arena::kGranuleBytes;
        request.stream = stream;
        request.stream_id = (*cache)->key().stream_id;
        request.capturing = capture_count_ > 0;
        flush_for_request_locked();
        if (!pending_.empty() && !may_capture_locked()) { poll_locked(); }
        Result<Block*> block = obtain_locked(request, lock, bytes);
        if (!block) { return block.status(); }
        if (kind_ != Strategy::Paged) {  // fell back to split meanwhile
            strategy_->give(*block);
            lock.unlock();
            return allocate_large(bytes, stream);
        }
        auto* slab = new Slab(*block, *cache, class_index);
        (*block)->arena->set_slab(*block, slab);
        (*cache)->add(slab);
        slab_bytes_ += (*block)->bytes;
        count_reserved_locked();
        // Under the lock still, or another thread's trim could take the empty slab away.
        const Address address = (*cache)->take(class_index, bytes);
        // Of a lower slab, if another thread has just freed an object there.
        const std::uintptr_t tagged = addresses_.find(address)->tagged_start(address);
        note_object_locked(reinterpret_cast<Slab*>(tagged - 1), address, bytes);
        return address;
    }
}

// 0: the cache has no room.
Address DeviceHeap::take_object(ThreadCache& cache, Bytes bytes) {
    const int class_index = size_class(with_redzone(bytes, level_));
    if (level_ < Isolation::Packed) { return cache.take(class_index, bytes); }
    const std::lock_guard guard(lock_);
    const Address address = cache.take(class_index, bytes);
    if (address == 0) { return 0; }
    const std::uintptr_t tagged = addresses_.find(address)->tagged_start(address);
    note_object_locked(reinterpret_cast<Slab*>(tagged - 1), address, bytes);
    return address;
}

Result<ThreadCache*> DeviceHeap::borrow_cache(Stream stream) {
    ThreadCache* const former = find_thread_cache(id_, stream);
    if (former != nullptr && (level_ == Isolation::Off || is_stream_of(*former, stream))) {
        return former;
    }
    std::uint64_t stream_id = 0;
    if (stream != nullptr) {
        Result<std::uint64_t> id = driver_.stream_id(device_, stream);
        if (!id) { return id.status(); }
        stream_id = *id;
    }
    const ArenaKey key{device_, PoolId{}, stream, stream_id};
    ThreadCache* cache = nullptr;
    {
        std::lock_guard guard(lock_);
        if (auto it = idle_caches_.find(key); it != idle_caches_.end()) {
            cache = it->second;
            idle_caches_.erase(it);
        } else {
            cache =
                caches_.emplace_back(std::make_unique<ThreadCache>(key, keep_no_slabs_, changed_))
                    .get();
        }
    }
    remember_thread_cache(id_, stream, cache);
    if (former != nullptr) { return_cache(former); }  // of a stream that is gone
    return cache;
}

void DeviceHeap::return_cache(ThreadCache* cache) {
    std::lock_guard guard(lock_);
    flush_locked(*cache);
    for (Slab* slab : cache->drain()) { return_slab_locked(slab); }
    idle_caches_.emplace(cache->key(), cache);
}

// A handle that is used again is another stream, which nothing orders after the work of the first.
bool DeviceHeap::is_stream_of(const ThreadCache& cache, Stream stream) {
    if (stream == nullptr) { return true; }
    const Result<std::uint64_t> id = driver_.stream_id(device_, stream);
    return id && *id == cache.key().stream_id;
}

Status DeviceHeap::finish_small_free(ThreadCache::Freed freed, Slab* slab, Address address,
                                     Slab* emptied, EventSink* observer) {
    switch (freed) {
        case ThreadCache::Freed::Kept:
            return {};
        case ThreadCache::Freed::SlabEmpty: {
            std::lock_guard guard(lock_);
            return_slab_locked(emptied);
            return {};
        }
        case ThreadCache::Freed::Recorded:
            return free_recorded_object(slab, address, observer);
        case ThreadCache::Freed::NotAllocated:
            break;
    }
    return refuse_free(address);
}

Status DeviceHeap::free_recorded_object(Slab* slab, Address address, EventSink* observer) {
    std::lock_guard guard(lock_);
    if (!pending_.recorded(address) || !slab->cache->count_recorded_free(slab, address)) {
        return refuse_free_locked(address);
    }
    note_freed_locked(address);
    const bool waits = free_waits_locked(address);
    if (observer != nullptr) {
        TraceRecord record =
            slab->cache->free_record(address, slab->cache->requested_bytes(slab, address));
        if (waits) { record.action = Action::FreeRequested; }
        observer->note(record);
    }
    exports_.end(address);
    flush_locked(*slab->cache);
    // The delta counted it as inactive too; it is active until its streams are done.
    count_active_locked(slab->object_bytes, StatPool::Small, 1);
    PendingFree pending{nullptr, slab, address, slab->object_bytes, 0};
    const auto defer = deferral_locked();
    Result<bool> complete = pending_.add(pending, defer);
    if (complete && *complete) {
        if (waits) { note_completed(pending); }
        finish_free_locked(pending);
    }
    update_parking_locked();
    return {};
}

void DeviceHeap::return_object_locked(Slab* slab, Address address) {
    count_active_locked(slab->object_bytes, StatPool::Small, -1);
    Slab* emptied = nullptr;
    if (slab->cache->put_pending(slab, address, emptied) == ThreadCache::Freed::SlabEmpty) {
        return_slab_locked(emptied);
    }
}

void DeviceHeap::return_slab_locked(Slab* slab) {
    Block* block = slab->block;
    note_change();  // its memory is inactive now
    block->arena->set_slab(block, nullptr);
    slab_bytes_ -= block->bytes;
    strategy_->give(block);
    delete slab;
}

void DeviceHeap::drain_caches_locked() {
    for (auto& cache : caches_) {
        flush_locked(*cache);
        for (Slab* slab : cache->drain()) { return_slab_locked(slab); }
    }
}

// One that was freed and waits for streams is not live: its uses went with the free.
bool DeviceHeap::live_object_locked(const Slab* slab, Address address) const {
    const ThreadCache::ObjectInfo object = slab->cache->info(slab, address);
    return object.allocated && (!object.recorded || pending_.recorded(address));
}

}  // namespace gma
