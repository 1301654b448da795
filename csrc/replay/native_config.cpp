#include "replay/native_config.h"

#include <algorithm>
#include <bit>
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

bool valid_divisions(std::optional<Bytes> divisions) {
    return divisions && (*divisions == 0 || std::has_single_bit(*divisions));
}

// "[256:1,512:2,>:8]": a row holds for its own doubling, the first one for all below it too, ">"
// for all above the last. Doublings between two rows stay unrounded, as in PyTorch.
bool read_division_rows(std::string_view rows, std::array<Bytes, 16>& to) {
    std::size_t last = 0;
    bool first_row = true;
    while (!rows.empty()) {
        const std::string_view row = rows.substr(0, rows.find(','));
        rows.remove_prefix(std::min(rows.size(), row.size() + 1));
        const std::size_t colon = row.find(':');
        if (colon == std::string_view::npos) { return false; }
        const auto divisions = number<Bytes>(row.substr(colon + 1));
        if (!valid_divisions(divisions)) { return false; }
        if (row.substr(0, colon) == ">") {
            const std::size_t from = first_row ? 0 : last + 1;
            std::fill(to.begin() + static_cast<std::ptrdiff_t>(std::min(from, to.size())),
                      to.end(), *divisions);
            continue;
        }
        const auto boundary = number<Bytes>(row.substr(0, colon));
        if (!boundary || !std::has_single_bit(*boundary)) { return false; }
        last = std::min<std::size_t>(static_cast<std::size_t>(std::countr_zero(*boundary)), 15);
        if (first_row) { std::fill_n(to.begin(), last, *divisions); }
        to[last] = *divisions;
        first_row = false;
    }
    return true;
}

bool read_divisions(std::string_view text, std::array<Bytes, 16>& to) {
    to.fill(0);
    if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
        return read_division_rows(text.substr(1, text.size() - 2), to);
    }
    const auto divisions = number<Bytes>(text);
    if (!valid_divisions(divisions)) { return false; }
    to.fill(*divisions);
    return true;
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
        if (!read_divisions(value, config.roundup_power2_divisions)) {
            return bad_value(key, value, "N or [256:1,512:2,>:8], powers of two");
        }
        return {};
    }
    return unknown_key(key);
}

}  // namespace

Bytes NativeConfig::block_bytes(Bytes requested_bytes) const {
    if (requested_bytes < kUnitBytes) { return kUnitBytes; }
    // 0: below 2 MiB, 1: below 4 MiB ...
    const std::size_t index =
        std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(requested_bytes >> 21)), 15);
    const Bytes divisions = roundup_power2_divisions[index];
    if (divisions <= 1 || requested_bytes <= kUnitBytes * divisions) {
        return round_up(requested_bytes, kUnitBytes);
    }
    return round_up(requested_bytes, std::bit_floor(requested_bytes) / divisions);
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
