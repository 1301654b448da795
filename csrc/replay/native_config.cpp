#include "replay/native_config.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/nearest.h"

namespace gma {
namespace {

Status unknown_key(std::string_view key) {
    static const std::vector<std::string> keys = {
        "max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb",
        "garbage_collection_threshold", "roundup_power2_divisions"};
    return {Code::InvalidValue, "unknown option '" + std::string(key) +
                                    "' for the native model; did you mean '" + nearest(key, keys) +
                                    "'?"};
}

Status bad_value(std::string_view key, std::string_view value, std::string_view expected) {
    return {Code::InvalidValue, "bad value '" + std::string(value) + "' for option '" +
                                    std::string(key) + "': expected " + std::string(expected)};
}

template <class Number>
std::optional<Number> number(std::string_view text) {
    Number value{};
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end) { return std::nullopt; }
    return value;
}

constexpr Bytes kMaxMegabytes = 1ULL << 40;

Status read_megabytes(const std::pair<std::string, std::string>& setting, Bytes least, Bytes& to) {
    const auto megabytes = number<Bytes>(setting.second);
    if (!megabytes || *megabytes < least || *megabytes > kMaxMegabytes) {
        return bad_value(setting.first, setting.second,
                         "a whole number of MiB, at least " + std::to_string(least));
    }
    to = *megabytes << 20;
    return {};
}

Status read_setting(const std::pair<std::string, std::string>& setting, NativeConfig& config) {
    const auto& [key, value] = setting;
    if (key == "max_split_size_mb") { return read_megabytes(setting, 20, config.max_split_bytes); }
    if (key == "max_non_split_rounding_mb") {
        return read_megabytes(setting, 20, config.max_non_split_rounding_bytes);
    }
    if (key == "large_segment_size_mb") {
        return read_megabytes(setting, 11, config.large_segment_bytes);
    }
    if (key == "garbage_collection_threshold") {
        const auto threshold = number<double>(value);
        if (!threshold || !(*threshold > 0.0 && *threshold < 1.0)) {
            return bad_value(key, value, "a number between 0 and 1, both excluded");
        }
        config.garbage_collection_threshold = *threshold;
        return {};
    }
    if (key == "roundup_power2_divisions") {
        const auto divisions = Power2Divisions::parse(value);
        if (!divisions) { return bad_value(key, value, "N or [256:1,512:2,>:8], powers of two"); }
        config.roundup_power2_divisions = *divisions;
        return {};
    }
    return unknown_key(key);
}

}  // namespace

Bytes NativeConfig::block_bytes(Bytes requested_bytes) const {
    const Bytes bytes = round_up(std::max(requested_bytes, kUnitBytes), kUnitBytes);
    const bool is_divided = roundup_power2_divisions.divisions(bytes) > 1;
    return is_divided ? roundup_power2_divisions.round(bytes) : bytes;
}

Bytes NativeConfig::segment_bytes(Bytes block_bytes) const {
    if (block_bytes <= kNativeSmallRequestBytes) { return kNativeSmallSegmentBytes; }
    if (block_bytes < kNativeLargeRequestBytes) { return large_segment_bytes; }
    return round_up(block_bytes, kNativeRoundSegmentBytes);
}

Result<NativeConfig> parse_native_config(const KeyValues& settings) {
    NativeConfig config;
    for (const auto& setting : settings) {
        const Status status = read_setting(setting, config);
        if (!status.ok()) { return status; }
    }
    return config;
}

}  // namespace gma
