// The pattern of the stress test, for g++ and for nvcc.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GMA_ON_CARD __host__ __device__
#else
#define GMA_ON_CARD
#endif

namespace gma::stress {

// Every word of every block differs, so that a page mapped to the wrong place shows too.
GMA_ON_CARD inline std::uint32_t word_of(std::uint32_t seed, std::uint64_t index) {
    const std::uint64_t mixed = (index + 1) * 0x9E3779B97F4A7C15ULL ^ seed;
    return static_cast<std::uint32_t>(mixed ^ mixed >> 32);
}

}  // namespace gma::stress
