// A lock for critical sections of a few nanoseconds that hardly ever meet: one exchange to take,
// one store to release, half the cost of a mutex.
#pragma once

#include <atomic>
#include <thread>

namespace gma {

class SpinLock {
public:
    [[gnu::always_inline]] void lock() {
        if (held_.exchange(true, std::memory_order_acquire)) [[unlikely]] { wait(); }
    }
    [[gnu::always_inline]] void unlock() { held_.store(false, std::memory_order_release); }

    // A lock_guard that is always in line: where one is in many functions, the compiler makes a
    // call of it, which is a tenth of what an allocation takes.
    class Guard {
    public:
        [[gnu::always_inline]] explicit Guard(SpinLock& lock) : lock_(lock) { lock_.lock(); }
        [[gnu::always_inline]] ~Guard() { lock_.unlock(); }
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;

    private:
        SpinLock& lock_;
    };

private:
    [[gnu::noinline]] void wait() {
        do {
            for (int spins = 0; held_.load(std::memory_order_relaxed); ++spins) {
                if (spins > 64) { std::this_thread::yield(); }
            }
        } while (held_.exchange(true, std::memory_order_acquire));
    }

    std::atomic<bool> held_{false};
};

}  // namespace gma
