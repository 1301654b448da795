// Which thread has borrowed which caches. A thread's list is its own; the registry of living heaps
// has a lock, taken when a thread or a heap ends.
#include <atomic>
#include <unordered_map>

#include "core/device_heap.h"

namespace gma {
namespace {

struct Registry {
    std::mutex lock;
    std::unordered_map<std::uint64_t, DeviceHeap*> heaps;
};

// Never destroyed: threads may end after static destructors have run. A pointer to a pointer, so
// that a forked child can start anew, whoever held the lock.
Registry*& current_registry() {
    static auto* instance = new Registry;
    return instance;
}
Registry& registry() { return *current_registry(); }

struct BorrowedCache {
    std::uint64_t heap_id;
    Stream stream;
    ThreadCache* cache;
};

struct ThreadCaches {
    BorrowedCache recent{0, nullptr, nullptr};
    std::vector<BorrowedCache> all;

    ThreadCaches() { registry(); }
    ~ThreadCaches() {
        std::lock_guard guard(registry().lock);
        for (const BorrowedCache& borrowed : all) {
            auto it = registry().heaps.find(borrowed.heap_id);
            if (it != registry().heaps.end()) { it->second->return_cache(borrowed.cache); }
        }
        recent = {0, nullptr, nullptr};
        all.clear();
    }
};

thread_local ThreadCaches thread_caches;

}  // namespace

ThreadCache* find_thread_cache(std::uint64_t heap_id, Stream stream) {
    ThreadCaches& mine = thread_caches;
    if (mine.recent.heap_id == heap_id && mine.recent.stream == stream) { return mine.recent.cache; }
    for (const BorrowedCache& borrowed : mine.all) {
        if (borrowed.heap_id == heap_id && borrowed.stream == stream) {
            mine.recent = borrowed;
            return borrowed.cache;
        }
    }
    return nullptr;
}

void for_each_own_cache(std::uint64_t heap_id, const std::function<void(ThreadCache*)>& visit) {
    for (const BorrowedCache& borrowed : thread_caches.all) {
        if (borrowed.heap_id == heap_id) { visit(borrowed.cache); }
    }
}

void remember_thread_cache(std::uint64_t heap_id, Stream stream, ThreadCache* cache) {
    thread_caches.recent = {heap_id, stream, cache};
    thread_caches.all.push_back(thread_caches.recent);
}

void register_heap(DeviceHeap* heap) {
    std::lock_guard guard(registry().lock);
    registry().heaps[heap->id()] = heap;
}

void unregister_heap(DeviceHeap* heap) {
    std::lock_guard guard(registry().lock);
    registry().heaps.erase(heap->id());
}

void forget_heaps() { current_registry() = new Registry; }

std::uint64_t next_heap_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

}  // namespace gma
