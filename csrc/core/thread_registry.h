// Which thread has borrowed which caches, and which heaps are alive to give them back to.
#pragma once

#include <cstdint>
#include <span>

#include "core/thread_cache.h"

namespace gma {

class DeviceHeap;

struct BorrowedCache {
    std::uint64_t heap_id;
    Stream stream;
    ThreadCache* cache;
};

// The one used last: plain data, so that the hit costs no guard, and in the thread's static block,
// so that it costs no call from a shared library either.
extern thread_local constinit BorrowedCache recent_thread_cache
    __attribute__((tls_model("initial-exec")));

ThreadCache* search_thread_caches(std::uint64_t heap_id, Stream stream);

// The calling thread's cache for a stream, or nullptr; no lock.
inline ThreadCache* find_thread_cache(std::uint64_t heap_id, Stream stream) {
    const BorrowedCache& recent = recent_thread_cache;
    if (recent.heap_id == heap_id && recent.stream == stream) [[likely]] { return recent.cache; }
    return search_thread_caches(heap_id, stream);
}

// Takes the place of the one that the thread had for a stream of this handle.
void remember_thread_cache(std::uint64_t heap_id, Stream stream, ThreadCache* cache);

// All that the calling thread has borrowed, of any heap.
std::span<const BorrowedCache> own_caches();

// Visits the calling thread's caches of one heap.
template <class Visit>
void for_each_own_cache(std::uint64_t heap_id, Visit&& visit) {
    for (const BorrowedCache& borrowed : own_caches()) {
        if (borrowed.heap_id == heap_id) { visit(borrowed.cache); }
    }
}

// Heaps that exit handlers of threads may still give caches back to.
void register_heap(DeviceHeap* heap);
void unregister_heap(DeviceHeap* heap);
// In a forked child: threads' exits leave the parent's heaps and their locks alone.
void forget_heaps();
std::uint64_t next_heap_id();

}  // namespace gma
