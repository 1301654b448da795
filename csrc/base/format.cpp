#include "base/format.h"

#include <array>
#include <cstdio>

namespace gma {

std::string bytes_text(Bytes bytes) {
    static constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1_KiB) { return std::to_string(bytes) + " bytes"; }
    std::size_t unit = 0;
    double value = static_cast<double>(bytes) / 1024.0;
    while (value >= 1024.0 && unit + 1 < kUnits.size()) {
        value /= 1024.0;
        ++unit;
    }
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), "%.2f %s", value, kUnits[unit]);
    return text.data();
}

std::string hex_text(std::uint64_t value) {
    static constexpr const char* kDigits = "0123456789abcdef";
    std::string text;
    do {
        text.insert(text.begin(), kDigits[value % 16]);
        value /= 16;
    } while (value != 0);
    return "0x" + text;
}

}  // namespace gma
