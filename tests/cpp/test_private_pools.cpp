// Private pools that several graphs share, one after another and at once.
#include "pattern_world.h"

namespace gma {
namespace {

const Stream kOne = stream_at(1);
constexpr PoolId kPool{0, 9};

class PoolWorld : public PatternWorld {
public:
    PoolWorld() : PatternWorld("strategy:paged", small_card(32_MiB)) {}

    // A graph whose memory is free again for the next capture in the pool, but not for others.
    void capture() {
        REQUIRE(allocator->begin_pool(0, kPool, [](Stream stream) { return stream == kOne; }).ok());
        driver.set_capturing(kOne, true);
        const Address inside = allocate(8_MiB, kOne);
        REQUIRE(inside != 0);
        REQUIRE(free(inside).ok());
        driver.set_capturing(kOne, false);
        REQUIRE(allocator->end_pool(0, kPool).ok());
        driver.drain_all();
    }
    void release() { REQUIRE(allocator->release_pool(0, kPool).ok()); }
    // More than what the pool leaves of the card.
    bool others_get_it() {
        const Address address = allocate(30_MiB, kOne);
        if (address != 0) { REQUIRE(free(address).ok()); }
        return address != 0;
    }
};

}  // namespace

TEST_CASE("a pool that two graphs share is kept until both have released it") {
    PoolWorld world;
    world.capture();
    world.capture();
    world.release();
    CHECK_FALSE(world.others_get_it());
    REQUIRE(static_cast<bool>(world.allocator->trim(0)));
    CHECK(world.reserved_bytes() >= 8_MiB);
    world.release();
    CHECK(world.others_get_it());
    world.check_nothing_left();
}

TEST_CASE("a released pool that is begun again is private again") {
    PoolWorld world;
    world.capture();
    world.release();
    world.capture();
    CHECK_FALSE(world.others_get_it());
    REQUIRE(static_cast<bool>(world.allocator->trim(0)));
    CHECK(world.reserved_bytes() >= 8_MiB);
    world.release();
    CHECK(world.others_get_it());
    world.check_nothing_left();
}

TEST_CASE("a pool released more often than begun does no harm") {
    PoolWorld world;
    world.release();
    world.capture();
    world.release();
    world.release();
    CHECK(world.others_get_it());
    REQUIRE(static_cast<bool>(world.allocator->trim(0)));  // a capture takes nothing from others
    world.capture();
    CHECK_FALSE(world.others_get_it());
    world.release();
    world.check_nothing_left();
}

}  // namespace gma
