// A lock for critical sections of a few nanoseconds that hardly ever meet: one exchange to take,
// one store to release, half the cost of a mutex.
#pragma once

#include <atomic>
#include <thread>

namespace gma {

class SpinLock {
public:
    void lock() {
        while (held_.exchange(true, std::memory_order_acquire)) {
            for (int spins = 0; held_.load(std::memory_order_relaxed); ++spins) {
                if (spins > 64) { std::this_thread::yield(); }
            }
        }
    }
    void unlock() { held_.store(false, std::memory_order_release); }

private:
    std::atomic<bool> held_{false};
};

}  // namespace gma
