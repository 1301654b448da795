// A lock for critical sections of a few nanoseconds that hardly ever meet: one exchange to take,
// one store to release, half the cost of a mutex.
#pragma once

#include <atomic>
#include <thread>

namespace gma {

class SpinLock {
public:
    // In line wherever it is taken, which the compiler would rather not: the call costs a tenth.
    [[gnu::always_inline]] void lock() {
        if (held_.exchange(true, std::memory_order_acquire)) [[unlikely]] { wait(); }
    }
    void unlock() { held_.store(false, std::memory_order_release); }

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
