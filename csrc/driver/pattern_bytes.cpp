#include "driver/pattern_bytes.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace gma {

ByteRange words_in(const ByteRange& range) {
    const Address begin = std::min(round_up(range.begin, kPatternBytes), range.end);
    return {begin, std::max(begin, range.end / kPatternBytes * kPatternBytes)};
}

void write_pattern(unsigned char* bytes, const ByteRange& range, std::uint32_t pattern) {
    const auto write = [&](Address begin, Address end) {
        for (Address at = begin; at < end; ++at) {
            bytes[at - range.begin] = pattern_byte(pattern, at);
        }
    };
    const ByteRange words = words_in(range);
    write(range.begin, words.begin);
    for (Address at = words.begin; at < words.end; at += kPatternBytes) {
        std::memcpy(bytes + (at - range.begin), &pattern, kPatternBytes);
    }
    write(words.end, range.end);
}

std::optional<Finding> find_other(const unsigned char* bytes, std::size_t index,
                                  const ByteRange& range, std::uint32_t pattern) {
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
