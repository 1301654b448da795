// A lock for a few nanoseconds, at half of a mutex's cost. Who waits long, since a history of
// millions of entries is being copied, sleeps in between.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace gma::bridge {

class BriefLock {
public:
    void lock() {
        if (!held_.exchange(true, std::memory_order_acquire)) [[likely]] { return; }
        wait();
    }
    void unlock() { held_.store(false, std::memory_order_release); }

private:
    [[gnu::noinline]] void wait() {
        for (int round = 0; held_.exchange(true, std::memory_order_acquire); ++round) {
            for (int looks = 0; looks < 64 && held_.load(std::memory_order_relaxed); ++looks) {}
            if (round < 64) {
                std::this_thread::yield();
            } else {
                std::this_thread::sleep_for(std::chrono::microseconds(50));
            }
        }
    }

    std::atomic<bool> held_{false};
};

}  // namespace gma::bridge
