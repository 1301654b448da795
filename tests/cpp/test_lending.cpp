// Blocks lent to other streams: memory changes streams and stays where it is, in order.
#include <random>
#include <utility>

#include "pattern_world.h"

namespace gma {
namespace {

constexpr Bytes kBytes = 4_MiB;
constexpr Bytes kPage = PatternWorld::kPage;

// Memory for four blocks, all of it stream 1's and done with.
struct Lender {
    explicit Lender(const char* options = "strategy:paged,cross_stream:lend")
        : world(options, PatternWorld::small_card(32_MiB)) {
        std::vector<Address> blocks;
        for (int i = 0; i < 4; ++i) { blocks.push_back(world.allocate(kBytes, stream_at(1))); }
        keeper = blocks.back();  // so that nothing goes home
        blocks.pop_back();
        first = blocks.front();
        for (const Address address : blocks) { REQUIRE(world.free(address).ok()); }
        world.driver.drain_all();
        calls_before = world.driver.totals().count(Call::Map);
    }
    std::uint64_t mapped_since() { return world.driver.totals().count(Call::Map) - calls_before; }
    std::int64_t waits() { return world.statistics().stream_waits; }

    PatternWorld world;
    Address first = 0;
    Address keeper = 0;
    std::uint64_t calls_before = 0;
};

// What several streams do by turns, the same for each number; the addresses that they got.
std::vector<Address> round_of(PatternWorld& world, unsigned number) {
    std::mt19937 random(number);
    const auto below = [&random](std::size_t count) { return random() % count; };
    const std::size_t stream_count = 2 + below(7);
    const std::size_t live_count = 4 + below(16);
    const std::size_t most = 4 + below(100);
    std::vector<Address> given;
    std::vector<Address> live;
    for (int i = 0; i < 300; ++i) {
        const Stream stream = stream_at(1 + below(stream_count));
        if (live.size() < live_count && below(100) < 55) {
            const Bytes bytes = below(8) == 0 ? 1_KiB : (1 + below(most)) * 10_KiB;
            given.push_back(world.allocate(bytes, stream));
            live.push_back(given.back());
        } else if (!live.empty()) {
            std::swap(live[below(live.size())], live.back());
            REQUIRE(world.free(live.back()).ok());
            live.pop_back();
        }
        if (below(10) == 0) { world.driver.advance(stream, 1 + below(8)); }
    }
    world.free_all();
    world.driver.drain_all();
    return given;
}

}  // namespace

TEST_CASE("another stream gets a block where it lies") {
    Lender lender;
    const Address lent = lender.world.allocate(kBytes, stream_at(2));
    CHECK(lent == lender.first);
    CHECK(lender.mapped_since() == 0);
    CHECK(lender.waits() == 1);  // nobody had fenced the lender's work
    lender.world.check_audit();
    REQUIRE(lender.world.free(lent).ok());
    lender.world.driver.drain_all();
    CHECK(lender.world.mismatch_count == 0);
}

TEST_CASE("without lending its pages move") {
    Lender lender("strategy:paged,cross_stream:wait");
    static_cast<void>(lender.world.allocate(kBytes, stream_at(2)));
    CHECK(lender.mapped_since() > 0);
}

TEST_CASE("whoever takes lent memory next waits for the borrower") {
    Lender lender;
    const Address lent = lender.world.allocate(kBytes, stream_at(2));
    REQUIRE(lender.world.free(lent).ok());  // its work has not run yet
    const std::int64_t before = lender.waits();

    SUBCASE("its lender") {
        CHECK(lender.world.allocate(kBytes, stream_at(1)) == lent);
        CHECK(lender.waits() == before + 1);
    }
    SUBCASE("a third stream") {
        CHECK(lender.world.allocate(kBytes, stream_at(3)) == lent);
        CHECK(lender.waits() > before);
    }
    SUBCASE("but not the borrower itself") {
        CHECK(lender.world.allocate(kBytes, stream_at(2)) == lent);
        CHECK(lender.waits() == before);
    }
    lender.world.check_audit();
    lender.world.driver.drain_all();
    CHECK(lender.world.mismatch_count == 0);
    CHECK(lender.mapped_since() == 0);
}

TEST_CASE("nobody waits for a fence that has passed since it was last asked") {
    for (const bool passed : {false, true}) {
        CAPTURE(passed);
        Lender lender;
        const Address lent = lender.world.allocate(kBytes, stream_at(2));
        const Address also_lent = lender.world.allocate(kBytes, stream_at(2));
        REQUIRE(lender.world.free(lent).ok());
        REQUIRE(lender.world.free(also_lent).ok());
        CHECK(lender.world.allocate(kBytes, stream_at(3)) == lent);  // has a fence recorded
        if (passed) { lender.world.driver.drain_all(); }
        const std::int64_t before = lender.waits();
        CHECK(lender.world.allocate(kBytes, stream_at(1)) == also_lent);
        CHECK(lender.waits() == before + (passed ? 0 : 1));
        lender.world.driver.drain_all();
        CHECK(lender.world.mismatch_count == 0);
    }
}

TEST_CASE("memory that a borrower may still use is not given back") {
    Lender lender;
    const Address lent = lender.world.allocate(kBytes, stream_at(2));
    REQUIRE(lender.world.free(lent).ok());
    const Bytes before = lender.world.reserved_bytes();
    REQUIRE(lender.world.allocator->trim(0));
    lender.world.driver.drain_all();
    CHECK(lender.world.mismatch_count == 0);
    REQUIRE(lender.world.allocator->trim(0));
    CHECK(lender.world.reserved_bytes() < before);
    lender.world.check_audit();
}

TEST_CASE("a lent block belongs to the stream that has it") {
    Lender lender;
    const Address lent = lender.world.allocate(kBytes, stream_at(2));
    REQUIRE(lender.world.record(lent, stream_at(2)).ok());  // its own: nothing to wait for
    REQUIRE(lender.world.free(lent).ok());
    CHECK(lender.world.allocate(kBytes, stream_at(2)) == lent);
    const Result<Event> written = lender.world.driver.record(0, stream_at(2));
    REQUIRE(written);
    REQUIRE(lender.world.driver.wait(stream_at(1), *written).ok());
    lender.world.driver.recycle(*written);
    REQUIRE(lender.world.record(lent, stream_at(1)).ok());  // the lender's is another one
    REQUIRE(lender.world.free(lent).ok());
    CHECK(lender.world.allocate(kBytes, stream_at(2)) != lent);
    lender.world.driver.drain_all();
    CHECK(lender.world.mismatch_count == 0);
}

// What four streams need by turns is less than a page each.
TEST_CASE("streams that take turns with little memory keep their own") {
    bool keeps = true;
    std::string options = "strategy:paged";
    SUBCASE("lend") {}
    SUBCASE("wait") { options += ",cross_stream:wait"; }
    SUBCASE("not even so little is to be spent on it") {
        options += ",stream_slack_mb:0";
        keeps = false;
    }
    PatternWorld world(options.c_str(), PatternWorld::small_card(1_GiB));
    for (int round = 0; round < 10; ++round) {
        for (int stream = 1; stream <= 4; ++stream) {
            REQUIRE(world.free(world.allocate(kPage, stream_at(stream))).ok());
        }
    }
    const auto counted = world.statistics();
    CHECK(counted.moved_chunks == 0);
    CHECK((counted.stream_waits == 0) == keeps);
    CHECK((world.reserved_bytes() == 4 * kPage) == keeps);
    world.driver.drain_all();
    CHECK(world.mismatch_count == 0);
}

// A 256th of the card or the limit, and the limit holds as ever.
TEST_CASE("what streams may keep apart has an end") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(1_GiB));
    SUBCASE("the card's") {}
    Bytes most = 4_MiB;
    SUBCASE("a limit's") { REQUIRE(world.allocator->set_limit(0, 5_MiB).ok()); }
    SUBCASE("a limit's 256th") {
        REQUIRE(world.allocator->set_limit(0, 256_MiB).ok());
        most = 1_MiB;
    }
    for (int stream = 1; stream <= 4; ++stream) {
        REQUIRE(world.free(world.allocate(3_MiB, stream_at(stream))).ok());
    }
    CHECK(world.reserved_bytes() <= 3_MiB + most);
    CHECK(world.reserved_bytes() <= world.allocator->limit(0));
    CHECK(world.statistics().stream_waits > 0);
}

// Whether or not a round had to move anything.
TEST_CASE("streams that lend get the same addresses round after round") {
    for (unsigned number = 1; number <= 60; ++number) {
        CAPTURE(number);
        PatternWorld world("strategy:paged", PatternWorld::small_card(256_MiB));
        for (int round = 0; round < 12; ++round) { static_cast<void>(round_of(world, number)); }
        const std::vector<Address> settled = round_of(world, number);
        CHECK(round_of(world, number) == settled);
        CHECK(world.mismatch_count == 0);
    }
}

}  // namespace gma
