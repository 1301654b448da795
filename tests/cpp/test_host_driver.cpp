// The driver on the CPU: conformance, and what it does beyond (memory, rules, faults, counts).
#include "driver/host_driver.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "content_conformance.h"
#include "driver/driver_costs.h"
#include "driver_conformance.h"

namespace gma {
namespace {

unsigned char* bytes_at(Address address) { return reinterpret_cast<unsigned char*>(address); }
Stream stream(std::uintptr_t number) { return reinterpret_cast<Stream>(number); }

// Asks the kernel, so that nobody has to survive a SIGSEGV.
bool is_readable(Address address) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    const bool readable = ::write(ends[1], bytes_at(address), 1) == 1;
    ::close(ends[0]);
    ::close(ends[1]);
    return readable;
}

void check_conformance(const HostDriverConfig& config) {
    HostDriver driver(config);
    unsigned char shadow = 0;  // of AddressesOnly, which has no contents
    DriverAccess access{.driver = driver,
                        .device = config.device_count - 1,
                        .fill = {},
                        .read_byte = {},
                        .first_stream = stream(16),
                        .second_stream = stream(32),
                        .has_contents = config.memory == HostMemory::Real};
    if (access.has_contents) {
        access.fill = [](Address address, unsigned char value, Bytes bytes) {
            std::memset(bytes_at(address), value, bytes);
        };
        access.read_byte = [](Address address) { return int{*bytes_at(address)}; };
    } else {
        access.fill = [&](Address, unsigned char value, Bytes) { shadow = value; };
        access.read_byte = [&](Address) { return int{shadow}; };
    }
    check_driver_conformance(access);
    check_content_conformance(access);
    CHECK(driver.live_handles() == 0);
    CHECK(driver.held_bytes(access.device) == 0);
    CHECK(driver.outstanding_events() == 0);
    CHECK(driver.segments().empty());
}

}  // namespace

TEST_CASE("host driver: conformance, real memory") { check_conformance({.device_count = 2}); }

TEST_CASE("host driver: conformance, real memory in pages of 64 KiB") {
    check_conformance({.capacity_bytes = 64_MiB, .page_bytes = 64_KiB});
}

TEST_CASE("host driver: conformance, addresses only") {
    check_conformance({.memory = HostMemory::AddressesOnly});
}

TEST_CASE("host driver: conformance, on a clock") {
    check_conformance({.memory = HostMemory::AddressesOnly, .timeline = HostTimeline::Clock});
}

TEST_CASE("host driver: an address faults unless something accessible is mapped there") {
    HostDriver driver;
    const Address base = require_value(driver.reserve(0, 8_MiB, 2_MiB));
    CHECK_FALSE(is_readable(base));
    const Handle handle = require_value(driver.create(0, 2_MiB));
    require_ok(driver.map(base, 2_MiB, handle));
    CHECK_FALSE(is_readable(base));
    require_ok(driver.set_access(0, base, 2_MiB));
    CHECK(is_readable(base));
    CHECK(is_readable(base + 2_MiB - 1));
    CHECK_FALSE(is_readable(base + 2_MiB));
    require_ok(driver.unmap(base, 2_MiB));
    CHECK_FALSE(is_readable(base));

    const Address segment = require_value(driver.malloc(0, 4096));
    CHECK(is_readable(segment + 4095));
    CHECK_FALSE(is_readable(segment + 4096));
    require_ok(driver.free(0, segment));
    CHECK_FALSE(is_readable(segment));
}

TEST_CASE("host driver: memory that was given back is nobody's data") {
    HostDriver driver;
    const Address base = require_value(driver.reserve(0, 4_MiB, 2_MiB));
    for (int round = 0; round < 3; ++round) {
        const Handle handle = require_value(driver.create(0, 2_MiB));
        require_ok(driver.map(base, 2_MiB, handle));
        require_ok(driver.set_access(0, base, 2_MiB));
        CHECK(*bytes_at(base + 12345) == 0);
        std::memset(bytes_at(base), 0x77, 2_MiB);
        require_ok(driver.unmap(base, 2_MiB));
        require_ok(driver.release(0, handle, 2_MiB));
    }
}

TEST_CASE("host driver: a handle lives until it is released and mapped nowhere") {
    HostDriver driver({.capacity_bytes = 4_MiB, .memory = HostMemory::AddressesOnly});
    const Address base = require_value(driver.reserve(0, 64_MiB, 2_MiB));
    const Handle handle = require_value(driver.create(0, 4_MiB));
    require_ok(driver.map(base, 4_MiB, handle));
    require_ok(driver.map(base + 8_MiB, 4_MiB, handle));
    CHECK(driver.mapped_bytes() == 8_MiB);
    require_ok(driver.release(0, handle, 4_MiB));
    check_refused(driver.release(0, handle, 4_MiB));
    check_refused(driver.map(base + 16_MiB, 4_MiB, handle));
    require_ok(driver.unmap(base, 4_MiB));
    CHECK(driver.live_handles() == 1);
    CHECK(driver.create(0, 2_MiB).status().code() == Code::OutOfMemory);
    require_ok(driver.unmap(base + 8_MiB, 4_MiB));
    CHECK(driver.live_handles() == 0);
    CHECK(driver.held_bytes() == 0);
    const Handle next = require_value(driver.create(0, 4_MiB));
    CHECK(next != handle);  // a stale handle is noticed
    check_refused(driver.map(base, 4_MiB, handle));
    CHECK(require_value(driver.card_memory(0)).free_bytes == 0);
}

TEST_CASE("host driver: broken rules are refused") {
    HostDriver driver({.device_count = 2, .memory = HostMemory::AddressesOnly});
    const Address base = require_value(driver.reserve(0, 16_MiB, 2_MiB));
    const Handle handle = require_value(driver.create(0, 2_MiB));
    check_refused(driver.create(0, 3_MiB).status());
    check_refused(driver.create(0, 0).status());
    check_refused(driver.create(2, 2_MiB).status());
    check_refused(driver.reserve(0, 2_MiB, 1_MiB).status());
    check_refused(driver.reserve(0, 2_MiB, 6_MiB).status());
    check_refused(driver.map(base + 1_MiB, 2_MiB, handle));
    check_refused(driver.map(base, 4_MiB, handle));
    check_refused(driver.map(base, 2_MiB, Handle{12345}));
    check_refused(driver.release(1, handle, 2_MiB));
    check_refused(driver.release(0, handle, 4_MiB));
    check_refused(driver.unreserve(base, 8_MiB));
    check_refused(driver.unreserve(base + 2_MiB, 14_MiB));
    const Address segment = require_value(driver.malloc(0, 1_MiB));
    check_refused(driver.free(1, segment));
    check_refused(driver.free(0, segment + 512));
    require_ok(driver.free(0, segment));
    check_refused(driver.free(0, segment));
    const Handle second = require_value(driver.create(0, 2_MiB));
    require_ok(driver.map(base, 2_MiB, handle));
    require_ok(driver.map(base + 4_MiB, 2_MiB, second));
    check_refused(driver.unmap(base, 6_MiB));  // a gap
    check_refused(driver.set_access(0, base, 6_MiB));
    CHECK(driver.mapped_ranges().size() == 2);
}

TEST_CASE("host driver: what is mapped where") {
    HostDriver driver({.memory = HostMemory::AddressesOnly});
    const Address base = require_value(driver.reserve(0, 16_MiB, 2_MiB));
    const Handle handle = require_value(driver.create(0, 4_MiB));
    require_ok(driver.map(base + 2_MiB, 4_MiB, handle));
    CHECK_FALSE(driver.mapping_at(base));
    CHECK_FALSE(driver.mapping_at(base + 6_MiB));
    const auto mapping = driver.mapping_at(base + 5_MiB);
    REQUIRE(mapping);
    CHECK(mapping->handle == handle);
    CHECK(mapping->start == base + 2_MiB);
    CHECK(mapping->bytes == 4_MiB);
    CHECK_FALSE(mapping->is_accessible);
    require_ok(driver.set_access(0, base + 2_MiB, 4_MiB));
    CHECK(driver.mapping_at(base + 2_MiB)->is_accessible);
    REQUIRE(driver.reserved_ranges().size() == 1);
    CHECK(driver.reserved_ranges().front().bytes == 16_MiB);
}

TEST_CASE("host driver: without mapping only segments work") {
    HostDriver driver({.memory = HostMemory::AddressesOnly, .mapping_supported = false});
    CHECK(require_value(driver.properties(0)).page_bytes == 0);
    CHECK(driver.reserve(0, 2_MiB, 2_MiB).status().code() == Code::NotSupported);
    CHECK(driver.create(0, 2_MiB).status().code() == Code::NotSupported);
    require_ok(driver.free(0, require_value(driver.malloc(0, 2_MiB))));
}

TEST_CASE("host driver: addresses that came back are dealt again, lowest first") {
    HostDriver driver({.memory = HostMemory::AddressesOnly});
    const Address first = require_value(driver.malloc(0, 2_MiB));
    const Address second = require_value(driver.malloc(0, 2_MiB));
    require_ok(driver.free(0, second));
    require_ok(driver.free(0, first));
    CHECK(require_value(driver.malloc(0, 2_MiB)) == first);
    CHECK(require_value(driver.malloc(0, 4_MiB)) > second);
}

TEST_CASE("host driver: the k-th call fails") {
    HostDriver driver({.memory = HostMemory::AddressesOnly});
    driver.fail_call(2);
    const Handle handle = require_value(driver.create(0, 2_MiB));
    CHECK(driver.faults_fired() == 0);
    check_refused(driver.release(0, handle, 2_MiB));
    CHECK(driver.faults_fired() == 1);
    CHECK(driver.live_handles() == 1);  // a failed release releases nothing
    require_ok(driver.release(0, handle, 2_MiB));

    driver.fail_kind(Call::Create, 2, {}, 2);
    require_value(driver.create(0, 2_MiB));
    CHECK(driver.create(0, 2_MiB).status().code() == Code::OutOfMemory);
    CHECK(driver.create(0, 2_MiB).status().code() == Code::OutOfMemory);
    require_value(driver.create(0, 2_MiB));

    driver.fail_kind(Call::Create, 1, Code::NotSupported);
    CHECK(driver.create(0, 2_MiB).status().code() == Code::NotSupported);
    driver.fail_call(5);
    driver.clear_faults();
    for (int i = 0; i < 5; ++i) { require_value(driver.properties(0)); }
    CHECK(driver.faults_fired() == 4);
}

TEST_CASE("host driver: every fallible call can be made to fail") {
    HostDriver driver;
    const Address base = require_value(driver.reserve(0, 4_MiB, 2_MiB));
    const Handle handle = require_value(driver.create(0, 2_MiB));
    const Event event = require_value(driver.record(0, nullptr));
    const Address segment = require_value(driver.malloc(0, 2_MiB));
    const std::vector<std::function<Status()>> calls = {
        [&] { return driver.properties(0).status(); },
        [&] { return driver.card_memory(0).status(); },
        [&] { return driver.reserve(0, 2_MiB, 2_MiB).status(); },
        [&] { return driver.map(base, 2_MiB, handle); },
        [&] { return driver.set_access(0, base, 2_MiB); },
        [&] { return driver.unmap(base, 2_MiB); },
        [&] { return driver.unreserve(base, 4_MiB); },
        [&] { return driver.create(0, 2_MiB).status(); },
        [&] { return driver.release(0, handle, 2_MiB); },
        [&] { return driver.malloc(0, 2_MiB).status(); },
        [&] { return driver.free(0, segment); },
        [&] { return driver.record(0, nullptr).status(); },
        [&] { return driver.wait(stream(16), event); },
        [&] { return driver.passed(event).status(); },
        [&] { return driver.synchronize(event); },
        [&] { return driver.fill(0, nullptr, {}, 0); },
        [&] { return driver.check(0, nullptr, {}, 0).status(); },
        [&] { return driver.stream_id(0, nullptr).status(); },
        [&] { return driver.capturing(0, nullptr).status(); },
        [&] { return driver.synchronize_device(0); },
    };
    for (const auto& call : calls) {
        const std::uint64_t before = driver.fallible_calls();
        driver.fail_call(1, Code::DriverFailed);
        check_refused(call());
        require_ok(call());
        CHECK(driver.fallible_calls() == before + 2);
    }
    CHECK(driver.faults_fired() == calls.size());
}

TEST_CASE("host driver: calls are counted and priced by the size of each handle") {
    HostDriver driver({.memory = HostMemory::AddressesOnly});
    const Address base = require_value(driver.reserve(0, 256_MiB, 2_MiB));
    const Handle small = require_value(driver.create(0, 2_MiB));
    const Handle large = require_value(driver.create(0, 128_MiB));
    require_ok(driver.map(base, 2_MiB, small));
    require_ok(driver.map(base + 2_MiB, 128_MiB, large));
    driver.reset_totals();
    require_ok(driver.set_access(0, base, 130_MiB));
    CHECK(driver.totals().count(Call::SetAccess) == 1);  // one call, the price of two handles
    CHECK(driver.totals().cost_ns == doctest::Approx(29'000 + 29'000));
    require_ok(driver.unmap(base, 130_MiB));
    require_ok(driver.release(0, large, 128_MiB));
    CHECK(driver.totals().cost_ns == doctest::Approx(58'000 + 38'000 + 78'000));
    const Event event = require_value(driver.record(0, nullptr));
    require_value(driver.passed(event));
    CHECK(driver.totals().cost_ns == doctest::Approx(174'000 + 330 + 290));
    CHECK(driver.totals().count(Call::Event) == 1);

    HostDriver free_driver({.memory = HostMemory::AddressesOnly, .costs = HostCosts::Free});
    require_value(free_driver.create(0, 2_MiB));
    CHECK(free_driver.totals().count(Call::Create) == 1);
    CHECK(free_driver.totals().cost_ns == 0);
}

TEST_CASE("driver costs: linear between the measured sizes, extended above") {
    CHECK(call_cost_ns(Call::Release, 320_MiB) == doctest::Approx((78'000 + 300'000) / 2.0));
    CHECK(call_cost_ns(Call::Create, 17_MiB) == doctest::Approx(12'000));
    CHECK(call_cost_ns(Call::Free, 1_KiB) == doctest::Approx(35'000));
    CHECK(call_cost_ns(Call::Malloc, 1025_MiB) == doctest::Approx((41'000 + 180'000) / 2.0));
    const double slope = (1'119'000.0 - 300'000.0) / 1536;  // a MiB
    CHECK(call_cost_ns(Call::Release, 4_GiB) == doctest::Approx(1'119'000 + 2048 * slope));
}

TEST_CASE("host driver: safe from many threads") {
    HostDriver driver({.memory = HostMemory::AddressesOnly});
    std::vector<std::thread> threads;
    for (std::uintptr_t t = 0; t < 4; ++t) {
        threads.emplace_back([&driver, t] {
            for (int i = 0; i < 500; ++i) {
                const Result<Handle> handle = driver.create(0, 2_MiB);
                const Result<Event> event = driver.record(0, stream(16 * (t + 1)));
                if (handle && event) {
                    static_cast<void>(driver.passed(*event));
                    driver.recycle(*event);
                    static_cast<void>(driver.release(0, *handle, 2_MiB));
                }
            }
        });
    }
    for (std::thread& thread : threads) { thread.join(); }
    CHECK(driver.totals().count(Call::Create) == 2000);
    CHECK(driver.live_handles() == 0);
    CHECK(driver.outstanding_events() == 0);
}

}  // namespace gma
