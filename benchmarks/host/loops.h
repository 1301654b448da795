// What the compiled loops share: a clock, a time that ends them, and blocks of PyTorch's allocator
// of the moment, taken through the interface that its kernels use.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace loops {

using Clock = std::chrono::steady_clock;
namespace caching = c10::cuda::CUDACachingAllocator;

inline double ns_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

// Instead of a cost in ns, where the allocator does not answer a call.
constexpr double kRefused = -1;

// When a loop must end. Asking costs some 25 ns, so loops ask every few pairs.
class Deadline {
public:
    explicit Deadline(double seconds)
        : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(seconds))) {}
    bool is_over() const { return Clock::now() >= end_; }

private:
    Clock::time_point end_;
};

inline std::vector<c10::DataPtr> make_blocks(std::size_t bytes, std::size_t count) {
    std::vector<c10::DataPtr> blocks(count);
    for (c10::DataPtr& block : blocks) { block = caching::get()->allocate(bytes); }
    return blocks;
}

// Numbers that are the same in every run (xorshift64*).
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed * 2 + 1) {}
    std::uint64_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 2685821657736338717ULL;
    }
    std::size_t below(std::size_t count) {
        return static_cast<std::size_t>(static_cast<double>(count) * unit());
    }
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
    // As many sizes between 1 and 2 KiB as between 2 and 4 KiB.
    std::size_t size(std::size_t least, std::size_t most) {
        const double ratio = static_cast<double>(most) / static_cast<double>(least);
        return static_cast<std::size_t>(static_cast<double>(least) * std::pow(ratio, unit()));
    }

private:
    std::uint64_t state_;
};

}  // namespace loops
