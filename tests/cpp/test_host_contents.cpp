// What the driver on the CPU does about contents beyond the conformance suite: both timelines,
// memory that cannot be reached, private handles.
#include <doctest.h>

#include <cstring>
#include <vector>

#include "driver/driver_costs.h"
#include "driver/host_driver.h"
#include "driver_conformance.h"

namespace gma {
namespace {

constexpr std::uint32_t kPattern = 0xfffd'fffd;
const Stream kStream = reinterpret_cast<Stream>(16);

unsigned char* bytes_at(Address address) { return reinterpret_cast<unsigned char*>(address); }

// One page at the start of eight reserved ones.
struct Place {
    explicit Place(HostDriver& driver, Reach reach = Reach::Shared) {
        base = require_value(driver.reserve(0, 16_MiB, 2_MiB));
        handle = require_value(driver.create(0, 2_MiB, reach));
        require_ok(driver.map(base, 2_MiB, handle));
        require_ok(driver.set_access(0, base, 2_MiB, reach));
    }
    Address base = 0;
    Handle handle{};
};

std::vector<Finding> findings_of(HostDriver& driver, Check check) {
    std::vector<Finding> findings;
    REQUIRE(require_value(driver.checked(check, true, findings)));
    return findings;
}

bool is_done(HostDriver& driver, Check check) {
    std::vector<Finding> findings;
    return require_value(driver.checked(check, false, findings));
}

}  // namespace

TEST_CASE("host contents: manual: a fill and a check wait for their stream") {
    HostDriver driver;
    const Place place(driver);
    std::memset(bytes_at(place.base), 1, 64);
    require_ok(driver.fill(0, kStream, {{place.base, place.base + 64}}, kPattern));
    driver.launch(kStream, [&] { *bytes_at(place.base + 9) = 7; });
    const Check check =
        require_value(driver.check(0, kStream, {{place.base, place.base + 64}}, kPattern));
    CHECK(driver.queued_operations(kStream) == 3);
    CHECK(*bytes_at(place.base) == 1);
    CHECK_FALSE(is_done(driver, check));
    driver.advance(kStream);
    CHECK(*bytes_at(place.base) == 0xfd);
    driver.advance(kStream);
    CHECK_FALSE(is_done(driver, check));
    driver.advance(kStream);
    *bytes_at(place.base + 8) = 7;  // too late to be seen
    const std::vector<Finding> findings = findings_of(driver, check);
    REQUIRE(findings.size() == 1);
    CHECK(findings[0].first_bad == place.base + 9);
    CHECK(driver.outstanding_events() == 0);
    std::vector<Finding> none;
    check_refused(driver.checked(check, true, none).status(), "asking twice");
}

TEST_CASE("host contents: clock: contents change at once and a check takes its time") {
    HostDriver driver({.timeline = HostTimeline::Clock, .lag_ns = 1'000});
    const Place place(driver);
    require_ok(driver.fill(0, kStream, {{place.base, place.base + 64}}, kPattern));
    CHECK(*bytes_at(place.base + 63) == 0xff);
    *bytes_at(place.base + 63) = 0;
    const Check check =
        require_value(driver.check(0, kStream, {{place.base, place.base + 64}}, kPattern));
    CHECK_FALSE(is_done(driver, check));
    driver.set_time_ns(999);
    CHECK_FALSE(is_done(driver, check));
    driver.set_time_ns(1'000);
    std::vector<Finding> findings;
    CHECK(require_value(driver.checked(check, false, findings)));
    CHECK(findings.size() == 1);
}

TEST_CASE("host contents: without memory nothing is found and the rules still hold") {
    HostDriver driver({.memory = HostMemory::AddressesOnly, .timeline = HostTimeline::Clock});
    const Place place(driver);
    const Check check =
        require_value(driver.check(0, kStream, {{place.base, place.base + 64}}, kPattern));
    CHECK(findings_of(driver, check).empty());
    require_ok(driver.fill(0, kStream, {{place.base + 2_MiB - 4, place.base + 2_MiB + 4}}, 0));
    REQUIRE(driver.illegal_accesses().size() == 1);
    CHECK(driver.illegal_accesses()[0].address == place.base + 2_MiB);
}

TEST_CASE("host contents: what is not mapped when the stream gets there is an illegal access") {
    HostDriver driver;
    const Place place(driver);
    require_ok(driver.fill(0, kStream, {{place.base, place.base + 64}}, kPattern));
    const Check check =
        require_value(driver.check(0, kStream, {{place.base + 8, place.base + 64}}, kPattern));
    require_ok(driver.unmap(place.base, 2_MiB));
    CHECK(driver.illegal_accesses().empty());
    std::vector<Finding> findings;
    const Status status = driver.checked(check, true, findings).status();
    CHECK(status.code() == Code::DriverFailed);
    CHECK(status.driver_code() == 700);
    CHECK(findings.empty());
    const std::vector<HostIllegalAccess> illegal = driver.illegal_accesses();
    REQUIRE(illegal.size() == 2);
    CHECK(illegal[0].address == place.base);
    CHECK(illegal[0].stream == kStream);
    CHECK(illegal[0].is_write);
    CHECK(illegal[1].address == place.base + 8);
    CHECK_FALSE(illegal[1].is_write);
    CHECK(driver.outstanding_events() == 0);
}

TEST_CASE("host contents: mapped without access is illegal, and a segment is not") {
    HostDriver driver;
    const Address base = require_value(driver.reserve(0, 2_MiB, 2_MiB));
    const Handle handle = require_value(driver.create(0, 2_MiB));
    require_ok(driver.map(base, 2_MiB, handle));
    require_ok(driver.fill(0, kStream, {{base, base + 4}}, 0));
    driver.drain(kStream);
    CHECK(driver.illegal_accesses().size() == 1);
    const Address segment = require_value(driver.malloc(0, 1_KiB));
    require_ok(driver.fill(0, kStream, {{segment, segment + 1_KiB}}, 0));
    driver.drain(kStream);
    CHECK(driver.illegal_accesses().size() == 1);
    require_ok(driver.fill(0, kStream, {{segment, segment + 1_KiB + 1}}, 0));
    driver.drain(kStream);
    REQUIRE(driver.illegal_accesses().size() == 2);
    CHECK(driver.illegal_accesses()[1].address == segment + 1_KiB);
}

TEST_CASE("host contents: a private handle is its device's and nobody else's") {
    HostDriver driver({.device_count = 2});
    const Place place(driver, Reach::Private);
    check_refused(driver.set_access(0, place.base, 2_MiB), "giving peers private memory");
    check_refused(driver.set_access(1, place.base, 2_MiB, Reach::Private), "another device");
    CHECK(driver.export_handle(0, place.handle).status().code() == Code::NotSupported);
    CHECK(driver.mapping_at(place.base)->reach == Reach::Private);
    require_ok(driver.fill(1, kStream, {{place.base, place.base + 4}}, kPattern));
    driver.drain_all();
    REQUIRE(driver.illegal_accesses().size() == 1);
    CHECK(driver.illegal_accesses()[0].device == 1);
    require_ok(driver.fill(0, kStream, {{place.base, place.base + 4}}, kPattern));
    driver.drain_all();
    CHECK(driver.illegal_accesses().size() == 1);
}

TEST_CASE("host contents: fills and checks are counted, priced and fail on demand") {
    HostDriver driver;
    const Place place(driver);
    const std::vector<ByteRange> range = {{place.base, place.base + 64}};
    driver.reset_totals();
    require_ok(driver.fill(0, kStream, range, kPattern));
    const Check check = require_value(driver.check(0, kStream, range, kPattern));
    CHECK(driver.totals().count(Call::Fill) == 1);
    CHECK(driver.totals().count(Call::Check) == 1);
    CHECK(driver.totals().cost_ns == doctest::Approx(2 * kContentNs));
    driver.fail_kind(Call::Check, 1);
    driver.fail_kind(Call::Fill, 1);
    require_ok(driver.record(0, kStream).status());
    check_refused(driver.fill(0, kStream, range, kPattern));
    check_refused(driver.check(0, kStream, range, kPattern).status());
    driver.fail_kind(Call::Synchronize, 1);
    std::vector<Finding> findings;
    check_refused(driver.checked(check, true, findings).status(), "a wait that fails");
    check_refused(driver.checked(check, true, findings).status(), "what a failure has ended");
}

TEST_CASE("host contents: a capturing or destroyed stream takes no fill and no check") {
    HostDriver driver;
    const Place place(driver);
    const std::vector<ByteRange> range = {{place.base, place.base + 64}};
    driver.set_capturing(kStream, true);
    check_refused(driver.fill(0, kStream, range, kPattern));
    check_refused(driver.check(0, kStream, range, kPattern).status());
    CHECK(driver.capture_violations() == 2);
    driver.set_capturing(kStream, false);
    driver.destroy_stream(kStream);
    check_refused(driver.fill(0, kStream, range, kPattern));
    check_refused(driver.check(0, kStream, range, kPattern).status());
    CHECK(driver.queued_operations(kStream) == 0);
}

}  // namespace gma
