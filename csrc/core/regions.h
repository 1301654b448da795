// Parts of a program that ask for isolation (`with gpumem_alloc.isolated():`), of one thread or of
// all. The innermost one of a thread decides; one for all threads where the thread has none.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
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

    void begin(Isolation level, Threads threads);
    // Ends the newest one of this thread, or of all threads; false if there is none.
    bool end(Threads threads);
    bool any() const { return count_.load(std::memory_order_relaxed) > 0; }
    // What an allocation of this thread asks for; Off outside all regions. Those of threads that
    // have ended end here.
    Isolation current() const;

private:
    struct Region {
        std::shared_ptr<std::atomic<bool>> thread;  // whether it lives; nullptr: all of them
        Isolation level;
        bool is_for(Threads threads) const;
    };

    mutable std::mutex mutex_;
    mutable std::vector<Region> open_;
    mutable std::atomic<std::size_t> count_{0};
};

}  // namespace gma
