// Enough of CUDA's language to compile csrc/kernels/*.cu as C++ and to run it: a thread for each
// lane, one warp after the other. For what the kernels compute; how fast and how wide is a card's.
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __global__

struct alignas(16) uint4 {
    std::uint32_t x, y, z, w;
};
inline uint4 make_uint4(std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t w) {
    return {x, y, z, w};
}

struct CpuIndex {
    unsigned x = 0;
};
inline thread_local CpuIndex threadIdx;
inline thread_local CpuIndex blockIdx;
inline thread_local CpuIndex blockDim;

using std::max;
using std::min;

// The lanes of one warp show each other a value.
class CpuWarp {
public:
    static constexpr unsigned kLanes = 32;

    static std::uint64_t exchange(std::uint64_t mine, unsigned from) {
        current->values_[threadIdx.x % kLanes] = mine;
        current->meeting_.arrive_and_wait();
        const std::uint64_t value = current->values_[from];
        current->meeting_.arrive_and_wait();
        return value;
    }

    // Runs `kernel()` as lane 0 to 31 of a warp of a block.
    template <class Kernel>
    void run(unsigned block, unsigned block_threads, unsigned first_thread, Kernel kernel) {
        std::vector<std::thread> lanes;
        for (unsigned lane = 0; lane < kLanes; ++lane) {
            lanes.emplace_back([=, this] {
                current = this;
                blockIdx.x = block;
                blockDim.x = block_threads;
                threadIdx.x = first_thread + lane;
                kernel();
                meeting_.arrive_and_drop();
            });
        }
        for (std::thread& lane : lanes) { lane.join(); }
    }

private:
    static inline thread_local CpuWarp* current = nullptr;
    std::barrier<> meeting_{kLanes};
    std::array<std::uint64_t, kLanes> values_{};
};

inline std::uint64_t __shfl_xor_sync(unsigned, std::uint64_t value, unsigned mask) {
    return CpuWarp::exchange(value, threadIdx.x % CpuWarp::kLanes ^ mask);
}
inline unsigned __ballot_sync(unsigned, bool mine) {
    unsigned all = 0;
    for (unsigned lane = 0; lane < CpuWarp::kLanes; ++lane) {
        all |= static_cast<unsigned>(CpuWarp::exchange(mine ? 1 : 0, lane)) << lane;
    }
    return all;
}

inline void __syncwarp() { CpuWarp::exchange(0, 0); }

template <class Kernel, class Arguments>
void run_on_cpu(Kernel kernel, unsigned block_count, unsigned block_threads,
                const Arguments& arguments) {
    for (unsigned block = 0; block < block_count; ++block) {
        for (unsigned first = 0; first < block_threads; first += CpuWarp::kLanes) {
            CpuWarp().run(block, block_threads, first, [&] { kernel(arguments); });
        }
    }
}
