#include "driver/pattern_bytes.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace gma {

ByteRange words_in(const ByteRange& range) {
    const Address begin = std::min(round_up(range.begin, kPatternBytes), range.end);
    return {begin, std::max(begin, range.end / kPatternBytes * kPatternBytes)};
}

// Each byte is as the one kPatternBytes before: copied in ever longer runs, which is fast in a
// debug build too.
void write_pattern(unsigned char* bytes, const ByteRange& range, std::uint32_t pattern) {
    const Bytes length = range.end - range.begin;
    Bytes done = std::min(length, kPatternBytes);
    for (Bytes i = 0; i < done; ++i) { bytes[i] = pattern_byte(pattern, range.begin + i); }
    for (; done < length; done = std::min(2 * done, length)) {
        std::memcpy(bytes + done, bytes, std::min(done, length - done));
    }
}

static bool holds(const unsigned char* bytes, const ByteRange& range, std::uint32_t pattern) {
    const Bytes length = range.end - range.begin;
    for (Bytes i = 0; i < std::min(length, kPatternBytes); ++i) {
        if (bytes[i] != pattern_byte(pattern, range.begin + i)) { return false; }
    }
    return length <= kPatternBytes ||
           std::memcmp(bytes, bytes + kPatternBytes, length - kPatternBytes) == 0;
}

std::optional<Finding> find_other(const unsigned char* bytes, std::size_t index,
                                  const ByteRange& range, std::uint32_t pattern) {
    if (holds(bytes, range, pattern)) { return std::nullopt; }
    Finding finding{.range = index};
    for (Address at = range.begin; at < range.end;) {
        std::uint32_t word = ~pattern;
        if (at % kPatternBytes == 0 && range.end - at >= kPatternBytes) {
            std::memcpy(&word, bytes + (at - range.begin), kPatternBytes);
        }
        if (word == pattern) {
            at += kPatternBytes;
            continue;
        }
        if (bytes[at - range.begin] != pattern_byte(pattern, at) && finding.bad_bytes++ == 0) {
            finding.first_bad = at;
        }
        ++at;
    }
    if (finding.bad_bytes == 0) { return std::nullopt; }
    const Bytes shown = std::min<Bytes>(range.end - finding.first_bad, finding.found.size());
    std::copy_n(bytes + (finding.first_bad - range.begin), shown, finding.found.begin());
    return finding;
}

Status check_ranges(const char* name, const std::vector<ByteRange>& ranges) {
    const bool is_ordered = std::all_of(ranges.begin(), ranges.end(), [](const ByteRange& range) {
        return range.begin <= range.end;
    });
    if (is_ordered) { return Status(); }
    return Status(Code::DriverFailed, std::string(name) + " failed: a range ends before it begins",
                  1);  // CUDA_ERROR_INVALID_VALUE
}

}  // namespace gma
