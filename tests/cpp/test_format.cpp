#include "base/format.h"

#include <doctest.h>

namespace gma {

TEST_CASE("bytes_text: two decimals, units of 1024") {
    CHECK(bytes_text(0) == "0 bytes");
    CHECK(bytes_text(1023) == "1023 bytes");
    CHECK(bytes_text(1_KiB) == "1.00 KiB");
    CHECK(bytes_text(1536) == "1.50 KiB");
    CHECK(bytes_text(64_MiB) == "64.00 MiB");
    CHECK(bytes_text(1_GiB - 1_MiB) == "1023.00 MiB");
    CHECK(bytes_text(79_GiB + 154_MiB) == "79.15 GiB");
    CHECK(bytes_text(4_TiB) == "4.00 TiB");
    CHECK(bytes_text(1024_TiB) == "1.00 PiB");
    CHECK(bytes_text(~0ULL) == "16.00 EiB");
}

TEST_CASE("hex_text: no leading zeros") {
    CHECK(hex_text(0) == "0x0");
    CHECK(hex_text(0x7F1234567000) == "0x7f1234567000");
    CHECK(hex_text(~0ULL) == "0xffffffffffffffff");
}

}  // namespace gma
