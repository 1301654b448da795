// What the host and the kernels of attack.cu tell each other: accesses that verify-isolation makes
// on purpose where none should be made.
#pragma once

#include <cstdint>

namespace gma {

// The one parameter of each kernel. Poke and peek go by bytes, scatter and gather by one element
// of 32 bits, as an index that is out of bounds would.
struct AttackArguments {
    std::uint64_t address;
    std::int64_t index;     // bytes or elements from the address
    std::uint64_t count;    // bytes
    std::uint64_t spin_ns;  // before the access
    unsigned char* output;  // of peek and gather; pinned memory of the host
    std::uint32_t value;    // of poke its lowest byte
    std::uint32_t unused;
};

inline constexpr char kPokeKernel[] = "gma_attack_poke";
inline constexpr char kPeekKernel[] = "gma_attack_peek";
inline constexpr char kScatterKernel[] = "gma_attack_scatter";
inline constexpr char kGatherKernel[] = "gma_attack_gather";
inline constexpr std::uint32_t kAttackThreads = 128;

}  // namespace gma
