// Statistics: plain structs made from statistics.def, with PyTorch's names and meanings.
#pragma once

#include <array>
#include <cstdint>

#include "base/units.h"

namespace gma {

enum class StatPool : std::uint8_t { All, Small, Large };  // PyTorch's all, small_pool, large_pool

// current == allocated - freed; peak is the highest current since the last reset.
struct Gauge {
    std::int64_t current = 0;
    std::int64_t peak = 0;
    std::int64_t allocated = 0;
    std::int64_t freed = 0;

    void add(std::int64_t amount) {
        current += amount;
        (amount > 0 ? allocated : freed) += amount > 0 ? amount : -amount;
        if (current > peak) { peak = current; }
    }
    void set(std::int64_t value) {
        if (value != current) { add(value - current); }
    }
    void reset_peak() { peak = current; }
    void reset_accumulated() { allocated = freed = 0; }
};

// Requests of up to 1 MiB are PyTorch's small pool (c10/core/AllocatorConfig.h, kSmallSize).
constexpr StatPool stat_pool(Bytes requested_bytes) {
    return requested_bytes <= 1_MiB ? StatPool::Small : StatPool::Large;
}

using PooledGauge = std::array<Gauge, 3>;  // indexed by StatPool

struct DeviceStatistics {
#define GMA_GAUGE(name, unit, sentence) PooledGauge name;
#define GMA_COUNTER(name, sentence) std::int64_t name = 0;
#include "core/statistics.def"
#undef GMA_GAUGE
#undef GMA_COUNTER
    std::uint64_t version = 0;  // they hold as long as statistics_version() answers this
};

}  // namespace gma
