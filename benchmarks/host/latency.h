// A clock for single calls: a few nanoseconds to read.
#pragma once

#include <cstdint>

#include "histogram.h"
#include "loops.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace loops {

// Ticks between calls that are not reordered with the work between them.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
    unsigned int core = 0;
    const std::uint64_t now = __rdtscp(&core);
    _mm_lfence();
    return now;
#else
    return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
#endif
}

// What two readings of the clock with nothing between them are apart, in the middle.
inline double clock_ticks() {
    Histogram apart;
    for (int reading = 0; reading < 20000; ++reading) {
        const std::uint64_t begin = ticks();
        apart.add(ticks() - begin);
    }
    return apart.quantile(0.5);
}

}  // namespace loops
