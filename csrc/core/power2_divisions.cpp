#include "core/power2_divisions.h"

#include <algorithm>
#include <bit>
#include <charconv>

namespace gma {
namespace {

std::optional<Bytes> number(std::string_view text) {
    Bytes value = 0;
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end) { return std::nullopt; }
    return value;
}

// What comes before the first `mark`; `text` keeps what follows it.
std::string_view take_until(std::string_view& text, char mark) {
    const std::string_view taken = text.substr(0, text.find(mark));
    text.remove_prefix(std::min(text.size(), taken.size() + 1));
    return taken;
}

// Divisions finer than a block of kUnitBytes would mean nothing.
std::optional<Bytes> read_divisions(std::string_view text) {
    const std::optional<Bytes> divisions = number(text);
    if (!divisions || *divisions > 1_MiB) { return std::nullopt; }
    if (*divisions != 0 && !std::has_single_bit(*divisions)) { return std::nullopt; }
    return divisions;
}

}  // namespace

std::optional<Power2Divisions> Power2Divisions::parse(std::string_view text) {
    Power2Divisions result;
    if (text.empty()) { return result; }
    if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
        if (!result.read_rows(text.substr(1, text.size() - 2))) { return std::nullopt; }
        return result;
    }
    const std::optional<Bytes> divisions = read_divisions(text);
    if (!divisions) { return std::nullopt; }
    result.rows_.fill({*divisions});
    return result;
}

bool Power2Divisions::read_rows(std::string_view text) {
    std::size_t next = 0;  // the row after the last one that was named
    while (!text.empty()) {
        std::string_view row = take_until(text, ',');
        const std::string_view boundary_text = take_until(row, ':');
        const std::optional<Bytes> divisions = read_divisions(row);
        if (!divisions) { return false; }
        if (boundary_text == ">") {
            std::fill(rows_.begin() + static_cast<std::ptrdiff_t>(next), rows_.end(),
                      Row{*divisions});
            continue;
        }
        const std::optional<Bytes> boundary = number(boundary_text);
        if (!boundary || !std::has_single_bit(*boundary)) { return false; }
        const auto index =
            std::min(static_cast<std::size_t>(std::countr_zero(*boundary)), kRowCount - 1);
        if (next == 0) { std::fill_n(rows_.begin(), index, Row{*divisions}); }
        rows_[index] = {*divisions};
        next = index + 1;
    }
    return true;
}

Bytes Power2Divisions::divisions(Bytes bytes) const {
    const auto doubling = static_cast<std::size_t>(std::bit_width(bytes >> 21));
    return rows_[std::min(doubling, kRowCount - 1)].divisions;
}

Bytes Power2Divisions::round(Bytes bytes) const {
    const Bytes parts = divisions(bytes);
    if (parts == 0 || bytes <= kUnitBytes * parts) { return bytes; }
    return round_up(bytes, std::bit_floor(bytes) / parts);
}

}  // namespace gma
