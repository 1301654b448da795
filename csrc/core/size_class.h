// Size classes of small requests, computed and proved: every multiple of 512 bytes up to 8 KiB,
// then 8 classes a doubling. Requests above kSmallMaxBytes take the large path.
#pragma once

#include <bit>
#include <cstdint>

#include "base/units.h"

namespace gma {

inline constexpr int kStepsPerDoubling = 8;
inline constexpr Bytes kSmallMaxBytes = 8_KiB;

constexpr int size_class(Bytes bytes) {
    const std::uint64_t units = bytes == 0 ? 1 : (bytes + kUnitBytes - 1) / kUnitBytes;
    if (units <= 2 * kStepsPerDoubling) { return static_cast<int>(units) - 1; }
    const int shift =
        static_cast<int>(std::bit_width(units - 1)) - 4;  // so that (units - 1) >> shift is 8..15
    return (shift + 1) * kStepsPerDoubling + static_cast<int>((units - 1) >> shift) - 8;
}

constexpr Bytes class_bytes(int index) {
    if (index < 2 * kStepsPerDoubling) { return static_cast<Bytes>(index + 1) * kUnitBytes; }
    const int shift = index / kStepsPerDoubling - 1;
    const Bytes step = static_cast<Bytes>(index % kStepsPerDoubling) + kStepsPerDoubling + 1;
    return (step << shift) * kUnitBytes;
}

inline constexpr int kClassCount = size_class(kSmallMaxBytes) + 1;

namespace size_class_proof {
// Fits, is the smallest that does, and wastes at most 1/8 beyond the rounding to 512 bytes.
constexpr bool holds(Bytes up_to) {
    for (Bytes bytes = 1; bytes <= up_to; bytes += 256) {
        const int index = size_class(bytes);
        const Bytes rounded = round_up(bytes, kUnitBytes);
        if (class_bytes(index) < bytes) { return false; }
        if (index > 0 && class_bytes(index - 1) >= bytes) { return false; }
        if (size_class(class_bytes(index)) != index) { return false; }
        if (class_bytes(index) - rounded > rounded / kStepsPerDoubling) { return false; }
    }
    return true;
}
static_assert(holds(1_MiB), "classes fit, are tight and waste at most 1/8");
}  // namespace size_class_proof

}  // namespace gma
