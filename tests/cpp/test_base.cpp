// Sizes, statuses and the version: what everything else leans on.
#include <doctest.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "base/units.h"
#include "base/version.h"

using namespace gma;

static_assert(2_MiB == 4096 * kUnitBytes);
static_assert(round_up(1, kUnitBytes) == kUnitBytes && round_up(0, kUnitBytes) == 0);
static_assert(round_up(7, 3) == 9 && round_down(7, 3) == 6);
static_assert(round_up(kMaxRequestBytes, kUnitBytes) == kMaxRequestBytes);

TEST_CASE("a default status is ok and carries nothing") {
    const Status status;
    CHECK(status.ok());
    CHECK(status.code() == Code::Ok);
    CHECK(status.message().empty());
}

TEST_CASE("a result holds a value or the reason for its absence") {
    Result<std::unique_ptr<int>> value = std::make_unique<int>(7);  // a type that only moves
    REQUIRE(value);
    CHECK(**value == 7);
    CHECK(value.status().ok());

    const Result<int> none = Status(Code::DriverFailed, "cuMemCreate failed", 2);
    CHECK_FALSE(none);
    CHECK(none.status().code() == Code::DriverFailed);
    CHECK(none.status().driver_code() == 2);
    CHECK(none.status().message() == "cuMemCreate failed");
}

TEST_CASE("the version has three numbers") {
    const std::string text = version();
    CHECK(text.find_first_not_of("0123456789.") == std::string::npos);
    CHECK(text.find('.') != text.rfind('.'));
}
