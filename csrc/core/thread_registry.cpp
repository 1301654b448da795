// Which thread has borrowed which caches. A thread's list is its own; the registry of living heaps
// has a lock, taken when a thread or a heap ends.
#include <atomic>
#include <unordered_map>

#include "core/device_heap.h"
#include "core/thread_registry.h"

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

struct ThreadCaches {
    std::vector<BorrowedCache> all;

    ThreadCaches() { registry(); }
    ~ThreadCaches();
};

thread_local ThreadCaches thread_caches;
thread_local constinit bool thread_has_ended = false;  // its caches have gone back already

ThreadCaches::~ThreadCaches() {
    thread_has_ended = true;
    recent_thread_cache = {0, nullptr, nullptr};
    std::lock_guard guard(registry().lock);
    for (const BorrowedCache& borrowed : all) {
        auto it = registry().heaps.find(borrowed.heap_id);
        if (it != registry().heaps.end()) { it->second->return_cache(borrowed.cache); }
    }
}

}  // namespace

thread_local constinit BorrowedCache recent_thread_cache = {0, nullptr, nullptr};

std::span<const BorrowedCache> own_caches() {
    if (thread_has_ended) { return {}; }
    return thread_caches.all;
}

ThreadCache* search_thread_caches(std::uint64_t heap_id, Stream stream) {
    for (const BorrowedCache& borrowed : own_caches()) {
        if (borrowed.heap_id == heap_id && borrowed.stream == stream) {
            recent_thread_cache = borrowed;
            return borrowed.cache;
        }
    }
    return nullptr;
}

// A thread that allocates while it ends (in a destructor of its own) keeps its cache for good.
void remember_thread_cache(std::uint64_t heap_id, Stream stream, ThreadCache* cache) {
    recent_thread_cache = {heap_id, stream, cache};
    if (thread_has_ended) { return; }
    for (BorrowedCache& borrowed : thread_caches.all) {
        if (borrowed.heap_id == heap_id && borrowed.stream == stream) {
            borrowed.cache = cache;
            return;
        }
    }
    thread_caches.all.push_back(recent_thread_cache);
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
