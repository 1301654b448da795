// roundup_power2_divisions: requests are rounded up to the next 1/N of a power of two, N by size.
//
// "8" holds for all sizes. "[256:1,512:2,>:8]" has a row for each doubling: "512:2" for sizes from
// 512 MiB to below 1 GiB. The first row holds for all below it too, ">" for all above the last row;
// doublings between two rows are not rounded. N is a power of two; 0 rounds nothing and 1 rounds up
// to a power of two.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "base/units.h"

namespace gma {

class Power2Divisions {
public:
    // nullopt: `text` does not have the form above. Empty text rounds nothing.
    static std::optional<Power2Divisions> parse(std::string_view text);

    // `bytes` is a multiple of kUnitBytes, and so is the result.
    Bytes round(Bytes bytes) const;
    // N for a request of that size.
    Bytes divisions(Bytes bytes) const;

private:
    // By doubling: below 2 MiB, below 4 MiB ... 32 GiB and more.
    static constexpr std::size_t kRowCount = 16;
    struct Row {
        Bytes divisions = 0;
    };
    bool read_rows(std::string_view text);

    std::array<Row, kRowCount> rows_;
};

}  // namespace gma
