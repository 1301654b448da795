#include <doctest.h>

#include "core/pending_frees.h"
#include "driver/host_driver.h"

namespace gma {
namespace {

const Stream kOne = reinterpret_cast<Stream>(0x1000);
const Stream kTwo = reinterpret_cast<Stream>(0x2000);
constexpr auto kNow = PendingFrees::Defer::No;
constexpr auto kLater = PendingFrees::Defer::Yes;

struct Fixture {
    // True: the free is complete.
    bool free(Address address, PendingFrees::Defer defer = kNow) {
        const Result<bool> complete = frees.add({&block, nullptr, address, 512, 0}, defer);
        REQUIRE(static_cast<bool>(complete));
        return *complete;
    }
    void use(Address address, Stream stream) {
        REQUIRE(frees.record(address, stream, kNow).ok());
        driver.launch(stream, [] {});
    }
    std::vector<Address> poll() { return addresses(frees.poll()); }
    static std::vector<Address> addresses(const std::vector<PendingFree>& done) {
        std::vector<Address> all;
        for (const PendingFree& free : done) { all.push_back(free.address); }
        return all;
    }

    HostDriver driver;
    Block block;
    PendingFrees frees{driver, 0};
};
using Addresses = std::vector<Address>;

}  // namespace

TEST_CASE("what no stream uses is free at once") {
    Fixture fixture;
    CHECK_FALSE(fixture.frees.recorded(512));
    CHECK(fixture.free(512));
    CHECK(fixture.frees.empty());
    CHECK(fixture.driver.totals().count(Call::Event) == 0);
}

TEST_CASE("a free waits for each recorded stream") {
    Fixture fixture;
    fixture.use(512, kOne);
    fixture.use(512, kTwo);
    fixture.use(512, kTwo);
    CHECK(fixture.frees.recorded(512));
    CHECK_FALSE(fixture.free(512));
    CHECK(fixture.frees.bytes() == 512);
    CHECK(fixture.frees.large_bytes() == 512);
    CHECK(fixture.driver.totals().count(Call::Event) == 2);
    fixture.driver.drain(kOne);
    CHECK(fixture.poll().empty());
    fixture.driver.drain(kTwo);
    CHECK(fixture.poll() == Addresses{512});
    CHECK(fixture.frees.empty());
    CHECK(fixture.driver.outstanding_events() == 0);
}

TEST_CASE("what is done comes in address order, and a slow stream holds nobody else back") {
    Fixture fixture;
    for (const Address address : {3072U, 1024U, 2048U}) {
        fixture.use(address, address == 1024 ? kTwo : kOne);
        CHECK_FALSE(fixture.free(address));
    }
    fixture.driver.drain(kOne);
    CHECK(fixture.poll() == Addresses{2048, 3072});
    CHECK(fixture.driver.queued_operations(kTwo) > 0);
}

TEST_CASE("the host waits for the oldest fence, and for no more") {
    Fixture fixture;
    fixture.use(512, kTwo);
    fixture.use(1024, kOne);
    CHECK_FALSE(fixture.free(512));
    CHECK_FALSE(fixture.free(1024));
    const Result<std::vector<PendingFree>> done = fixture.frees.wait_oldest();
    REQUIRE(static_cast<bool>(done));
    CHECK(Fixture::addresses(*done) == Addresses{512});
    CHECK(fixture.driver.queued_operations(kOne) > 0);
    REQUIRE(static_cast<bool>(fixture.frees.wait_oldest()));
    CHECK(fixture.frees.wait_oldest()->empty());
}

TEST_CASE("deferred frees are fenced by resume()") {
    Fixture fixture;
    fixture.use(512, kOne);
    CHECK_FALSE(fixture.free(512, kLater));
    CHECK(fixture.driver.totals().count(Call::Event) == 0);
    fixture.driver.drain(kOne);
    CHECK(fixture.poll().empty());  // nobody asked yet
    fixture.frees.resume();
    CHECK(fixture.driver.totals().count(Call::Event) == 1);
    fixture.driver.drain(kOne);
    CHECK(fixture.poll() == Addresses{512});
}

TEST_CASE("a destroyed stream's work is waited for through the device") {
    Fixture fixture;
    fixture.use(512, kOne);
    fixture.driver.destroy_stream(kOne);
    CHECK(fixture.free(512));
    CHECK(fixture.driver.queued_operations(kOne) == 0);
    CHECK(fixture.frees.empty());
}

TEST_CASE("a handle that is used again does not stand for the old stream") {
    Fixture fixture;
    fixture.use(512, kOne);
    fixture.driver.destroy_stream(kOne);
    fixture.driver.reuse_stream(kOne);
    CHECK(fixture.free(512));
    CHECK(fixture.driver.totals().count(Call::Synchronize) == 1);
}

// A pool is begun, and nobody captures or another stream does.
TEST_CASE("nor does one that was recorded while a capture might be under way") {
    Fixture fixture;
    SUBCASE("nobody captures") {}
    SUBCASE("another stream captures") { fixture.driver.set_capturing(kTwo, true); }
    REQUIRE(fixture.frees.record(512, kOne, kLater).ok());
    fixture.driver.launch(kOne, [] {});
    fixture.driver.set_capturing(kTwo, false);
    fixture.driver.destroy_stream(kOne);
    fixture.driver.reuse_stream(kOne);
    CHECK(fixture.free(512));
    CHECK(fixture.driver.totals().count(Call::Synchronize) == 1);
}

TEST_CASE("a stream that captures is not asked for its id") {
    Fixture fixture;
    fixture.driver.set_capturing(kOne, true);
    REQUIRE(fixture.frees.record(512, kOne, kLater).ok());
    fixture.driver.set_capturing(kOne, false);
    CHECK_FALSE(fixture.free(512));
    fixture.driver.drain(kOne);
    CHECK(fixture.poll() == Addresses{512});
}

// Neither a fence nor a wait: the block may still be in use, so it is not done.
TEST_CASE("a free whose fences cannot be had is tried again") {
    Fixture fixture;
    fixture.use(512, kOne);
    fixture.driver.fail_kind(Call::Event, 1);
    fixture.driver.fail_kind(Call::Synchronize, 1);
    CHECK_FALSE(fixture.free(512));
    CHECK(fixture.driver.faults_fired() == 2);
    CHECK(fixture.driver.queued_operations(kOne) > 0);
    CHECK(fixture.frees.bytes() == 512);
    CHECK(fixture.poll().empty());
    fixture.driver.drain(kOne);
    CHECK(fixture.poll() == Addresses{512});
    CHECK(fixture.frees.empty());
}

TEST_CASE("fences that still stand are given back in the end") {
    HostDriver driver;
    {
        PendingFrees frees(driver, 0);
        REQUIRE(frees.record(512, kOne, kNow).ok());
        REQUIRE(static_cast<bool>(frees.add({nullptr, nullptr, 512, 512, 0}, kNow)));
        CHECK(driver.outstanding_events() == 1);
    }
    CHECK(driver.outstanding_events() == 0);
}

}  // namespace gma
