// The processor's own counter: a third of the cost of asking the system for the time. Ticks become
// nanoseconds of the host's monotonic clock by two readings of both, some time apart.
#pragma once

#include <cstdint>
#include <ctime>

namespace gma {

inline std::uint64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

inline std::uint64_t ticks() {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    std::uint64_t count;
    asm volatile("mrs %0, cntvct_el0" : "=r"(count));
    return count;
#else
    return monotonic_ns();
#endif
}

struct TickReading {
    std::uint64_t tick = 0;
    std::uint64_t time_ns = 0;

    static TickReading now() { return {ticks(), monotonic_ns()}; }
};

// The time of a tick after `first`; never falls as ticks grow.
inline std::uint64_t tick_ns(std::uint64_t tick, const TickReading& first,
                             const TickReading& last) {
    if (tick <= first.tick || last.tick <= first.tick) { return first.time_ns; }
    const double ns_per_tick = static_cast<double>(last.time_ns - first.time_ns) /
                               static_cast<double>(last.tick - first.tick);
    return first.time_ns +
           static_cast<std::uint64_t>(static_cast<double>(tick - first.tick) * ns_per_tick);
}

}  // namespace gma
