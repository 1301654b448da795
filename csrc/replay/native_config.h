// Settings of PyTorch's native caching allocator, and the arithmetic that follows from them alone.
// Constants: c10/core/AllocatorConfig.h; names and bounds: its PYTORCH_ALLOC_CONF keys.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "core/power2_divisions.h"

namespace gma {

inline constexpr Bytes kNativeSmallRequestBytes = 1_MiB;  // at most this: the small pool
inline constexpr Bytes kNativeSmallSegmentBytes = 2_MiB;
inline constexpr Bytes kNativeLargeRequestBytes = 10_MiB;  // from here a segment fits its request
inline constexpr Bytes kNativeRoundSegmentBytes = 2_MiB;
inline constexpr Bytes kUnlimitedBytes = ~Bytes{0};

struct NativeConfig {
    Bytes max_split_bytes = kUnlimitedBytes;
    Bytes max_non_split_rounding_bytes = 20_MiB;
    Bytes large_segment_bytes = 20_MiB;
    double garbage_collection_threshold = 0.0;  // share of the limit; needs one
    Power2Divisions roundup_power2_divisions;   // unlike our own strategies, PyTorch takes 1 as 0
    bool expandable = false;
    Bytes limit_bytes = kUnlimitedBytes;  // physical bytes it may hold
    Bytes card_bytes = 144_GiB;           // an expandable segment reserves 9/8 of it

    // What a request becomes before a block is looked for.
    Bytes block_bytes(Bytes requested_bytes) const;
    // What is obtained from the driver for a block of that size.
    Bytes segment_bytes(Bytes block_bytes) const;
};

using KeyValues = std::vector<std::pair<std::string, std::string>>;

// Code::InvalidValue names the key and the nearest valid one, or the value and its bounds.
Result<NativeConfig> parse_native_config(const KeyValues& settings);

}  // namespace gma
