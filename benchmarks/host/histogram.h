// Every one of many numbers, kept in little room.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace loops {

// Counts by value, 64 buckets to each power of two: a value is known to 1.6 %.
class Histogram {
public:
    void add(std::uint64_t value) {
        ++counts_[bucket(value)];
        ++total_;
    }

    // The value that a part `part` of all lies at or below.
    double quantile(double part) const {
        const double wanted = part * static_cast<double>(total_);
        double seen = 0;
        for (std::size_t at = 0; at < counts_.size(); ++at) {
            seen += static_cast<double>(counts_[at]);
            if (counts_[at] > 0 && seen >= wanted) { return middle(at); }
        }
        return 0;
    }

    std::uint64_t total() const { return total_; }

private:
    static constexpr std::size_t kFine = 64;  // values below it have buckets of their own

    static std::size_t bucket(std::uint64_t value) {
        if (value < kFine) { return static_cast<std::size_t>(value); }
        const int shift = std::bit_width(value) - 7;  // leaves 64..127
        return kFine * static_cast<std::size_t>(shift) + static_cast<std::size_t>(value >> shift);
    }

    static double middle(std::size_t bucket) {
        if (bucket < 2 * kFine) { return static_cast<double>(bucket); }
        const std::size_t shift = bucket / kFine - 1;
        const double width = std::ldexp(1.0, static_cast<int>(shift));
        return (static_cast<double>(bucket - kFine * shift) + 0.5) * width;
    }

    std::array<std::uint64_t, kFine * 60> counts_{};
    std::uint64_t total_ = 0;
};

}  // namespace loops
