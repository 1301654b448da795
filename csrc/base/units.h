// Sizes and addresses. Every quantity in this code base is in bytes unless its name says otherwise
// (_ns, _count, _index, _pages).
#pragma once

#include <cstdint>

namespace gma {

using Bytes = std::uint64_t;
using Address = std::uint64_t;  // a device virtual address; 0 is "none"

constexpr Bytes operator""_B(unsigned long long n) { return n; }
constexpr Bytes operator""_KiB(unsigned long long n) { return n << 10; }
constexpr Bytes operator""_MiB(unsigned long long n) { return n << 20; }
constexpr Bytes operator""_GiB(unsigned long long n) { return n << 30; }
constexpr Bytes operator""_TiB(unsigned long long n) { return n << 40; }

// Every block is a multiple of this, as in PyTorch (c10/core/AllocatorConfig.h, kMinBlockSize).
inline constexpr Bytes kUnitBytes = 512_B;

// The largest request taken seriously; PyTorch refuses 1 EiB and more with a text of its own.
inline constexpr Bytes kMaxRequestBytes = 1ULL << 60;

// `multiple` may be any positive number.
constexpr Bytes round_up(Bytes bytes, Bytes multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}
constexpr Bytes round_down(Bytes bytes, Bytes multiple) { return bytes / multiple * multiple; }

}  // namespace gma
