// Uses of private pools, what trimming one gives back, and what its gauge tells.
#include "pools_world.h"

namespace gma {

TEST_CASE("what is begun and what is retained are uses alike") {
    PoolsWorld world;
    CHECK(world.uses() == 0);
    world.retain();
    world.retain();
    CHECK(world.uses() == 2);
    world.enter();
    CHECK(world.uses() == 3);
    world.leave();
    world.release();
    CHECK(world.uses() == 1);
    const Address first = world.allocate_in(kPool, 4_MiB);
    REQUIRE(world.free(first).ok());
    world.driver.drain_all();
    world.trim();
    CHECK(world.reserved_bytes() == 4_MiB);  // private
    world.release();
    CHECK(world.uses() == 0);
    world.trim();
    CHECK(world.reserved_bytes() == 0);
    world.retain();  // the same id again
    CHECK(world.uses() == 1);
    REQUIRE(world.free(world.allocate_in(kPool, 4_MiB)).ok());
    world.driver.drain_all();
    world.trim();
    CHECK(world.reserved_bytes() == 4_MiB);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("the default pool is not a private one, and a pool in use has its memory already") {
    PoolsWorld world;
    CHECK(world.allocator->retain_pool(0, PoolId{}, nullptr).code() == Code::InvalidValue);
    CHECK(world.allocator->set_pool_no_split(0, kPool).code() == Code::InvalidValue);
    CHECK(world.allocator->set_pool_use_on_oom(0, kPool, true).code() == Code::InvalidValue);
    world.check_nothing_left();
}

TEST_CASE("trimming a pool by name gives back what no block of it uses") {
    for (const char* options : {"strategy:paged", "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PoolsWorld world(64_MiB, options);
        world.retain();
        const Address kept = world.allocate_in(kPool, 12_MiB);
        const Address gone = world.allocate_in(kPool, 14_MiB);
        const Bytes reserved = world.reserved_bytes();
        REQUIRE(world.free(gone).ok());
        world.trim();
        CHECK(world.reserved_bytes() == reserved);
        CHECK(world.held().current == static_cast<std::int64_t>(reserved));
        CHECK(world.trim_pool(kOtherPool) == 0);
        CHECK(world.trim_pool() >= 14_MiB);
        CHECK(world.reserved_bytes() <= reserved - 14_MiB);
        CHECK(world.held().current == static_cast<std::int64_t>(world.reserved_bytes()));
        REQUIRE(world.free(kept).ok());
        world.release();
        world.check_nothing_left();
    }
}

TEST_CASE("trimming a pool waits for what was recorded on its blocks") {
    PoolsWorld world;
    world.retain();
    const Address address = world.allocate_in(kPool, 8_MiB);
    world.driver.drain_all();
    REQUIRE(world.record(address, kTwo).ok());
    REQUIRE(world.free(address).ok());
    CHECK(world.trim_pool() == 8_MiB);
    CHECK(world.mismatch_count == 0);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("trimming a pool leaves what a graph may use until the pool is released") {
    for (const char* options : {"strategy:paged", "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PoolsWorld world(64_MiB, options);
        world.capture(12_MiB);
        const Bytes reserved = world.reserved_bytes();
        REQUIRE(reserved >= 12_MiB);
        CHECK(world.trim_pool() == 0);
        CHECK(world.reserved_bytes() == reserved);
        world.release();
        world.trim_pool();
        CHECK(world.reserved_bytes() == 0);
        world.check_nothing_left();
    }
}

// The graph draws only on memory that was there before.
TEST_CASE("memory that a graph took from what was free is the graph's too") {
    PoolsWorld world;
    world.retain();
    REQUIRE(world.free(world.allocate_in(kPool, 8_MiB)).ok());
    world.driver.drain_all();
    world.capture(8_MiB);
    CHECK(world.reserved_bytes() == 8_MiB);
    CHECK(world.trim_pool() == 0);
    world.release();
    world.release();
    CHECK(world.trim_pool() == 8_MiB);
    world.check_nothing_left();
}

TEST_CASE("a pool's gauge falls to nothing when the pool is gone, its peak stays until reset") {
    PoolsWorld world;
    world.retain();
    const Address address = world.allocate_in(kPool, 8_MiB);
    CHECK(world.held().current == 8_MiB);
    world.release();
    CHECK(world.held().current == 8_MiB);  // the tensor outlives it
    REQUIRE(world.free(address).ok());
    world.driver.drain_all();
    world.trim_pool();
    Gauge gauge = world.held();
    CHECK(gauge.current == 0);
    CHECK(gauge.peak == 8_MiB);
    CHECK(gauge.allocated == 8_MiB);
    CHECK(gauge.freed == 8_MiB);
    world.allocator->reset_accumulated_statistics(0);
    CHECK(world.held().allocated == 0);
    CHECK(world.held().peak == 8_MiB);
    world.allocator->reset_peak_statistics(0);
    CHECK(world.allocator->pool_bytes(0).empty());
    world.check_nothing_left();
}

TEST_CASE("pools that are gone leave no addresses behind") {
    PoolsWorld world;
    for (std::uint64_t i = 1; i <= 50; ++i) {
        const PoolId pool{0, i};
        world.retain(pool);
        const Address address = world.allocate_in(pool, 1_MiB);
        REQUIRE(address != 0);
        REQUIRE(world.free(address).ok());
        world.release(pool);
        world.trim_pool(pool);
    }
    CHECK(world.driver.reserved_ranges().empty());
    world.check_nothing_left();
}

TEST_CASE("two streams in one pool, and an old one's memory used by others after its release") {
    PoolsWorld world(16_MiB);
    world.retain();
    const Address one = world.allocate_in(kPool, 6_MiB, kOne);
    const Address two = world.allocate_in(kPool, 6_MiB, kTwo);
    CHECK(world.held().current == 12_MiB);
    REQUIRE(world.free(one).ok());
    REQUIRE(world.free(two).ok());
    CHECK(world.allocate(8_MiB, kOne) == 0);
    world.release();
    CHECK(world.allocate(14_MiB, kOne) != 0);
    world.check_nothing_left();
}

}  // namespace gma
