// Blocks at places that the caller names: restored states of pools, and single blocks.
#include <algorithm>

#include "pools_world.h"

namespace gma {
namespace {

using State = std::vector<PoolBlock>;

bool same_block(const PoolBlock& a, const PoolBlock& b) {
    return a.address == b.address && a.bytes == b.bytes && a.requested_bytes == b.requested_bytes;
}

// What the allocator does to blocks is followed in the world's own list of them.
struct PlacesWorld : PoolsWorld {
    using PoolsWorld::PoolsWorld;

    State state() {
        Result<State> found = allocator->pool_state(0, kPool);
        REQUIRE_MESSAGE(found, found.status().message());
        return *found;
    }
    bool state_is(const State& wanted) {
        const State now = state();
        return std::equal(now.begin(), now.end(), wanted.begin(), wanted.end(), same_block);
    }
    PoolChange restore(const State& wanted) {
        Result<PoolChange> change = allocator->restore_pool(0, kPool, wanted);
        REQUIRE_MESSAGE(change, change.status().message());
        check_audit();
        for (const Address address : change->freed) { blocks.erase(address); }
        for (const Address address : change->allocated) {
            const auto it = std::find_if(
                wanted.begin(), wanted.end(),
                [address](const PoolBlock& block) { return block.address == address; });
            REQUIRE(it != wanted.end());
            adopt(address, {it->requested_bytes, kOne, 0, 0x77 + address});
        }
        CHECK(state_is(wanted));
        return *change;
    }
    std::vector<std::int64_t> counts() {
        const DeviceStatistics now = statistics();
        return {now.allocation[0].current,      now.allocated_bytes[0].current,
                now.requested_bytes[0].current, now.active[0].current,
                now.active_bytes[0].current,    now.allocation[2].current};
    }
};

constexpr const char* kStrategies[] = {"strategy:paged", "strategy:split", "strategy:direct"};

}  // namespace

TEST_CASE("a pool's state can be had again, blocks, sizes and statistics") {
    for (const char* options : kStrategies) {
        CAPTURE(std::string(options));
        PlacesWorld world(128_MiB, options);
        world.retain();
        const Address outside = world.allocate(1_MiB, kOne);
        std::vector<Address> inside;
        for (const Bytes bytes : {3_MiB, 700_B, 5_MiB + 1, 100_KiB, 2_MiB}) {
            inside.push_back(world.allocate_in(kPool, bytes));
        }
        REQUIRE(world.free(inside[1]).ok());
        REQUIRE(world.free(inside[2]).ok());
        const State state = world.state();
        REQUIRE(state.size() == 3);
        const auto counts = world.counts();
        // Some of the state goes, other blocks come where it was and elsewhere.
        REQUIRE(world.free(inside[0]).ok());
        REQUIRE(world.free(inside[4]).ok());
        std::vector<Address> later;
        for (const Bytes bytes : {1_MiB, 1_MiB, 4_MiB, 9_MiB}) {
            later.push_back(world.allocate_in(kPool, bytes));
        }
        std::vector<Address> live = later;
        live.push_back(inside[3]);
        std::sort(live.begin(), live.end());
        const PoolChange change = world.restore(state);
        CHECK(change.freed == live);
        CHECK(change.allocated.size() == 3);
        CHECK(std::is_sorted(change.allocated.begin(), change.allocated.end()));
        CHECK(world.counts() == counts);
        CHECK(world.restore(state).freed == change.allocated);
        CHECK(world.restore({}).allocated.empty());
        CHECK(world.state().empty());
        world.restore(state);
        CHECK(world.blocks.contains(outside));
        REQUIRE(world.free(inside[3]).ok());  // it is a block like any other
        world.release();
        world.check_nothing_left();
    }
}

TEST_CASE("a restored pool's memory is filled again after a trim") {
    PlacesWorld world(32_MiB);
    world.retain();
    const Address first = world.allocate_in(kPool, 6_MiB);
    const Address second = world.allocate_in(kPool, 4_MiB);
    const State state = world.state();
    REQUIRE(world.free(first).ok());
    world.driver.drain_all();
    CHECK(world.trim_pool() == 6_MiB);
    CHECK(world.restore(state).freed == std::vector<Address>{second});
    CHECK(world.reserved_bytes() == 10_MiB);
    // And if there is none: an error, and nothing lost.
    REQUIRE(world.free(first).ok());
    world.driver.drain_all();
    CHECK(world.trim_pool() == 6_MiB);
    const Address large = world.allocate(24_MiB, kTwo);
    const Result<PoolChange> refused = world.allocator->restore_pool(0, kPool, state);
    CHECK(refused.status().code() == Code::OutOfMemory);
    CHECK(world.state().size() == 1);
    world.check_audit();
    REQUIRE(world.free(large).ok());
    CHECK(world.restore(state).allocated.size() == 2);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a provided pool's state can be had again, unless its segment went") {
    struct Plain final : SegmentProvider {
        explicit Plain(Driver& used) : driver(used) {}
        Result<Address> obtain(Bytes bytes) override { return driver.malloc(0, bytes); }
        void give_back(Address address) noexcept override {
            static_cast<void>(driver.free(0, address));
        }
        Driver& driver;
    };
    PlacesWorld world(64_MiB);
    world.retain(kPool, std::make_shared<Plain>(world.driver));
    const Address first = world.allocate_in(kPool, 3_MiB);
    const Address second = world.allocate_in(kPool, 18_MiB);
    const State state = world.state();
    REQUIRE(world.free(first).ok());
    CHECK(world.allocate_in(kPool, 5_MiB) == first);
    REQUIRE(world.free(second).ok());
    world.restore(state);
    REQUIRE(world.free(second).ok());
    world.driver.drain_all();
    CHECK(world.trim_pool() == 18_MiB);
    CHECK_FALSE(static_cast<bool>(world.allocator->restore_pool(0, kPool, state)));
    CHECK(world.state().size() == 1);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("restoring waits for streams that freed blocks were recorded on") {
    PlacesWorld world(64_MiB);
    world.retain();
    const Address first = world.allocate_in(kPool, 3_MiB);
    const Address second = world.allocate_in(kPool, 3_MiB);
    const State state = world.state();
    world.driver.drain_all();
    REQUIRE(world.record(first, kTwo).ok());
    REQUIRE(world.record(second, kTwo).ok());
    REQUIRE(world.free(first).ok());  // pending; the other one is live and recorded
    CHECK(world.state().size() == 1);
    CHECK(world.driver.queued_operations(kTwo) > 0);
    world.restore(state);
    CHECK(world.driver.queued_operations(kTwo) == 0);
    CHECK(world.statistics().active[0].current == 2);
    CHECK(world.mismatch_count == 0);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("restoring waits for streams that live blocks were recorded on") {
    PlacesWorld world(64_MiB);
    world.retain();
    const Address first = world.allocate_in(kPool, 3_MiB);
    world.driver.drain_all();
    REQUIRE(world.record(first, kTwo).ok());
    CHECK(world.driver.queued_operations(kTwo) > 0);
    world.restore(State{{first, 1_MiB, 1_MiB}});
    CHECK(world.driver.queued_operations(kTwo) == 0);
    CHECK(world.mismatch_count == 0);
    CHECK(world.statistics().active[0].current == 1);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a state that cannot be is refused, and nothing changes") {
    PlacesWorld world(64_MiB);
    const State none;
    CHECK(world.allocator->restore_pool(0, kPool, none).status().code() == Code::InvalidValue);
    CHECK(world.allocator->pool_state(0, kPool).status().code() == Code::InvalidValue);
    world.retain();
    const Address address = world.allocate_in(kPool, 3_MiB);
    const Address outside = world.allocate(3_MiB, kOne);
    const State good = world.state();
    for (const State& bad : {State{{outside, 3_MiB, 3_MiB}}, State{{address + 100, 512, 512}},
                             State{{address, 512, 600}}, State{{address, 0, 0}},
                             State{{address, 1_MiB, 9}, {address + 512, 1_MiB, 9}},
                             State{{Address{1} << 20, 512, 512}}}) {
        CHECK_FALSE(static_cast<bool>(world.allocator->restore_pool(0, kPool, bad)));
        CHECK(world.state_is(good));
        world.check_audit();
    }
    world.release();
    CHECK_FALSE(static_cast<bool>(world.allocator->restore_pool(0, kPool, good)));
    world.check_nothing_left();
}

TEST_CASE("an exported block stays where it is in a restored pool") {
    PlacesWorld world(64_MiB);
    world.retain();
    const Address pinned = world.allocate_in(kPool, 3_MiB);
    const Address other = world.allocate_in(kPool, 3_MiB);
    PoolsWorld::ok(world.allocator->pin(pinned));
    const State both = world.state();
    REQUIRE(world.free(other).ok());
    const State one = world.state();
    world.restore(both);
    world.restore(one);
    CHECK_FALSE(static_cast<bool>(world.allocator->restore_pool(0, kPool, State{})));
    CHECK(world.state_is(one));
    REQUIRE(world.free(pinned).ok());
    CHECK_FALSE(static_cast<bool>(world.allocator->restore_pool(0, kPool, one)));
    CHECK(world.state().empty());
    PoolsWorld::ok(world.allocator->unpin(pinned));
    world.restore(one);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a restored block is a graph's again when the next capture takes its memory") {
    PlacesWorld world(64_MiB);
    const Address first = world.capture(4_MiB);
    world.restore(State{});
    CHECK(world.capture(4_MiB) == first);  // the same stream, the same memory
    world.restore(State{{first, 4_MiB, 4_MiB}});
    CHECK(world.capture(4_MiB) != first);
    CHECK(world.trim_pool() == 0);
    world.release();
    world.release();
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a block can be had where one was") {
    for (const char* options : {"strategy:paged", "strategy:split"}) {
        CAPTURE(std::string(options));
        PlacesWorld world(64_MiB, options);
        const Address first = world.allocate(6_MiB, kOne);
        const Address kept = world.allocate(2_MiB, kOne);
        const auto at = [&](Bytes bytes, Address place, Stream stream = kOne) {
            Result<Address> got = world.allocator->allocate_at(0, bytes, stream, place);
            world.check_audit();
            if (got) {
                CHECK(*got == place);
                world.adopt(*got, {bytes, stream, 0, 0x99 + place});
            }
            return got ? Code::Ok : got.status().code();
        };
        CHECK(at(1_MiB, first) == Code::NotSupported);
        CHECK(at(1_MiB, kept + 512) == Code::NotSupported);
        REQUIRE(world.free(first).ok());
        CHECK(at(1_MiB, first, kTwo) == Code::NotSupported);
        CHECK(at(6_MiB, first + 3_MiB) == Code::NotSupported);  // reaches into the next block
        CHECK(at(1_MiB, first + 3_MiB + 17) == Code::NotSupported);
        CHECK(at(1_MiB, first + 3_MiB) == Code::Ok);
        CHECK(at(3_MiB, first) == Code::Ok);
        CHECK(at(1_MiB, first) == Code::NotSupported);
        CHECK(world.statistics().allocation[0].current == 3);
        world.check_nothing_left();
    }
}

TEST_CASE("a place without memory is filled, in the pool that routes there") {
    PlacesWorld world(32_MiB);
    const Address first = world.allocate(6_MiB, kOne);
    REQUIRE(world.free(first).ok());
    world.driver.drain_all();
    world.trim();
    CHECK(world.reserved_bytes() == 0);
    Result<Address> got = world.allocator->allocate_at(0, 3_MiB, kOne, first + 1_MiB);
    REQUIRE_MESSAGE(got, got.status().message());
    CHECK(*got == first + 1_MiB);
    CHECK(world.reserved_bytes() == 3_MiB);
    world.check_audit();
    CHECK(world.allocator->allocate_at(0, 40_MiB, kOne, first + 8_MiB).status().code() ==
          Code::OutOfMemory);
    world.check_audit();
    world.adopt(*got, {3_MiB, kOne, 0, 5});
    world.retain();
    const Address inside = world.allocate_in(kPool, 2_MiB);
    REQUIRE(world.free(inside).ok());
    CHECK_FALSE(static_cast<bool>(world.allocator->allocate_at(0, 2_MiB, kOne, inside)));
    world.enter();
    got = world.allocator->allocate_at(0, 2_MiB, kOne, inside);
    REQUIRE(static_cast<bool>(got));
    world.adopt(*got, {2_MiB, kOne, 0, 6});
    world.leave();
    world.release();
    world.check_nothing_left();
}

TEST_CASE("direct places nothing") {
    PlacesWorld world(32_MiB, "strategy:direct");
    const Address address = world.allocate(2_MiB, kOne);
    REQUIRE(world.free(address).ok());
    CHECK(world.allocator->allocate_at(0, 2_MiB, kOne, address).status().code() ==
          Code::NotSupported);
    world.check_nothing_left();
}

}  // namespace gma
