// Statistics: plain structs made from statistics.def, with PyTorch's names and meanings.
#pragma once

#include <array>
#include <cstdint>

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

using PooledGauge = std::array<Gauge, 3>;  // indexed by StatPool

struct DeviceStatistics {
#define GMA_GAUGE(name, unit, sentence) PooledGauge name;
#define GMA_COUNTER(name, sentence) std::int64_t name = 0;
#include "core/statistics.def"
#undef GMA_GAUGE
#undef GMA_COUNTER
};

}  // namespace gma
