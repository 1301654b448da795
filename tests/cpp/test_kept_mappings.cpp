// Old mappings of chunks that moved: a way back without driver calls, and gone when it matters.
#include <random>
#include <vector>

#include "pattern_world.h"

namespace gma {
namespace {

// Blocks of all sizes in little memory, so that chunks move.
class Swing {
public:
    Swing() : world("strategy:paged", PatternWorld::small_card(16_MiB)) {}

    void rounds(int count) {
        for (int i = 0; i < count; ++i) {
            static_cast<void>(world.allocate((random_() % 60 + 1) * 48_KiB));
            while (world.blocks.size() > 6) {
                auto it = world.blocks.begin();
                std::advance(it, static_cast<std::ptrdiff_t>(random_() % world.blocks.size()));
                REQUIRE(world.free(it->first).ok());
            }
            if (i % 8 == 0) { world.driver.drain_all(); }
            if (i % 32 == 0) { world.check_audit(); }
        }
    }
    // The same requests every time, with nothing live before and after. Returns their places.
    std::vector<Address> repeated_round(std::uint64_t seed) {
        std::mt19937_64 random{seed};
        std::vector<Address> live;
        std::vector<Address> places;
        for (int i = 0; i < 300; ++i) {
            live.push_back(world.allocate((random() % 40 + 22) * 48_KiB));  // all in one arena
            if (base_ == 0) { base_ = live.front(); }
            places.push_back(live.back() - base_);
            if (live.size() > 4) {
                std::swap(live[random() % live.size()], live.back());
                REQUIRE(world.free(live.back()).ok());
                live.pop_back();
            }
        }
        world.free_all();
        world.driver.drain_all();
        world.check_audit();
        return places;
    }
    void check_that_rounds_keep_nothing() {
        repeated_round(7);
        static_cast<void>(world.allocate(48_KiB));  // now all went home
        CHECK(kept_count() == 0);
        world.check_nothing_left();
    }
    std::uint64_t calls(Call call) { return world.driver.totals().count(call); }
    std::size_t kept_count() {
        return world.driver.mapped_ranges().size() - world.driver.live_handles();
    }

    PatternWorld world;

private:
    std::mt19937_64 random_{7};
    Address base_ = 0;  // of the first block
};

}  // namespace

TEST_CASE("a chunk that was there before goes back without a call") {
    Swing swing;
    swing.rounds(2000);
    const DeviceStatistics now = swing.world.statistics();
    const auto placed_count = static_cast<std::uint64_t>(now.num_device_alloc + now.moved_chunks);
    CHECK(now.moved_chunks > 500);
    CHECK(placed_count > swing.calls(Call::Map) + 100);
    CHECK(swing.calls(Call::SetAccess) == swing.calls(Call::Map));
    swing.world.check_nothing_left();
}

// With captures each round begins without mappings of the ones before.
TEST_CASE("a round chooses as if there were no mappings of earlier rounds, and makes use of them") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        CAPTURE(seed);
        Swing keeps;
        Swing ends;
        ends.world.allocator->begin_capture(0);
        ends.world.allocator->end_capture(0);
        for (int i = 0; i < 6; ++i) {
            CHECK(keeps.repeated_round(seed) == ends.repeated_round(seed));
        }
        CHECK(keeps.kept_count() > 0);
        CHECK(keeps.calls(Call::Map) < ends.calls(Call::Map));
        keeps.world.check_nothing_left();
        ends.world.check_nothing_left();
    }
}

TEST_CASE("where graphs are captured, no mapping of an earlier round is in their way") {
    Swing swing;
    Allocator& allocator = *swing.world.allocator;
    swing.repeated_round(7);
    allocator.begin_capture(0);
    allocator.end_capture(0);
    swing.check_that_rounds_keep_nothing();
}

TEST_CASE("nor where only the driver tells of the capture") {
    Swing swing;
    Allocator& allocator = *swing.world.allocator;
    const PoolId pool{0, 1};
    swing.repeated_round(7);
    REQUIRE(allocator.begin_pool(0, pool, [](Stream) { return true; }).ok());
    swing.world.driver.set_capturing(nullptr, true);
    const Address captured = swing.world.allocate(2_MiB);
    swing.world.driver.set_capturing(nullptr, false);
    REQUIRE(captured != 0);
    REQUIRE(allocator.end_pool(0, pool).ok());
    REQUIRE(swing.world.free(captured).ok());
    REQUIRE(allocator.release_pool(0, pool).ok());
    swing.check_that_rounds_keep_nothing();
}

TEST_CASE("what is given back has no mapping left") {
    Swing swing;
    swing.rounds(500);
    swing.world.free_all();
    swing.world.driver.drain_all();
    const Bytes reserved_bytes = swing.world.reserved_bytes();
    const Result<Bytes> given = swing.world.allocator->trim(0);
    REQUIRE(given);
    CHECK(*given == reserved_bytes);
    CHECK(swing.world.driver.mapped_ranges().empty());
    CHECK(swing.world.driver.live_handles() == 0);
    swing.world.check_nothing_left();
}

TEST_CASE("memory whose old mapping cannot be ended is not given back yet") {
    Swing swing;
    swing.rounds(500);
    swing.world.driver.drain_all();
    const Bytes reserved_bytes = swing.world.reserved_bytes();
    swing.world.driver.fail_kind(Call::Unmap, 1, {}, 1'000'000);
    CHECK_FALSE(swing.world.allocator->trim(0));
    CHECK(swing.world.reserved_bytes() == reserved_bytes);
    swing.world.check_audit();
    swing.world.driver.clear_faults();
    swing.rounds(50);
    swing.world.check_nothing_left();
}

}  // namespace gma
