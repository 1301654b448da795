// Parts of a program that ask for isolation (`with gpumem_alloc.isolated():`), of one thread or of
// all. The innermost one of a thread decides; one for all threads where the thread has none.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "core/allocator.h"

namespace gma {

// The private pool of a device whose blocks have this level, in a program that has another one.
inline constexpr std::uint64_t kRegionPools = 0x49534F;  // "ISO"
inline PoolId region_pool(Isolation level) {
    return {kRegionPools, static_cast<std::uint64_t>(level)};
}

class Regions {
public:
    enum class Threads : std::uint8_t { This, All };

    void begin(Isolation level, Threads threads) {
        const std::lock_guard guard(mutex_);
        open_.push_back({thread_of(threads), level});
        count_ = open_.size();
    }
    // Ends the newest one of this thread, or of all threads; false if there is none.
    bool end(Threads threads) {
        const std::lock_guard guard(mutex_);
        const auto it = std::find_if(open_.rbegin(), open_.rend(), [&](const Region& region) {
            return region.thread == thread_of(threads);
        });
        if (it == open_.rend()) { return false; }
        open_.erase(std::next(it).base());
        count_ = open_.size();
        return true;
    }
    bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
    // What an allocation of this thread asks for; Off outside all regions.
    Isolation current() const {
        if (!any()) { return Isolation::Off; }
        const std::lock_guard guard(mutex_);
        for (Threads threads : {Threads::This, Threads::All}) {
            const auto it = std::find_if(open_.rbegin(), open_.rend(), [&](const Region& region) {
                return region.thread == thread_of(threads);
            });
            if (it != open_.rend()) { return it->level; }
        }
        return Isolation::Off;
    }

private:
    struct Region {
        std::thread::id thread;  // no thread: all of them
        Isolation level;
    };
    static std::thread::id thread_of(Threads threads) {
        return threads == Threads::This ? std::this_thread::get_id() : std::thread::id();
    }

    mutable std::mutex mutex_;
    std::vector<Region> open_;
    std::atomic<std::size_t> count_{0};
};

}  // namespace gma
