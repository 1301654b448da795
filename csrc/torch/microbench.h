// What one allocate + free through the C entry points costs on this host, beside malloc + free in
// the same run.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "core/options.h"

namespace gma {

// Wall nanoseconds per pair, the best of a few repetitions.
struct Microbench {
    std::vector<std::pair<Bytes, double>> malloc_pair_ns;      // by size
    std::vector<std::pair<Bytes, double>> pair_ns;             // by size
    std::vector<std::pair<std::size_t, double>> live_pair_ns;  // 512 B, by other live blocks
    std::vector<std::pair<int, double>> thread_pair_ns;        // 512 B, by threads doing the loop
};

// `seconds` is how long each single measurement may take, roughly. The process's allocator becomes
// one over the host driver, so measure in a process that serves no memory: once it does,
// Code::InvalidValue.
Result<Microbench> microbench(const Options& options, double seconds);

}  // namespace gma
