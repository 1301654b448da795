// Writing a pattern and looking for what differs from it, on the CPU. The byte at address a is byte
// a % 4 of the pattern, the lowest one first; `bytes` is where the contents of the range are.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "driver/driver.h"

namespace gma {

inline constexpr Bytes kPatternBytes = sizeof(std::uint32_t);

inline unsigned char pattern_byte(std::uint32_t pattern, Address address) {
    return static_cast<unsigned char>(pattern >> (address % kPatternBytes * 8));
}

// The whole words within a range, empty where there are none.
ByteRange words_in(const ByteRange& range);

void write_pattern(unsigned char* bytes, const ByteRange& range, std::uint32_t pattern);
std::optional<Finding> find_other(const unsigned char* bytes, std::size_t index,
                                  const ByteRange& range, std::uint32_t pattern);

// What every driver refuses.
Status check_ranges(const char* name, const std::vector<ByteRange>& ranges);

}  // namespace gma
