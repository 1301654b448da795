// The largest request that would succeed, and the statistics that are counted as blocks come and
// go.
#include <random>

#include "core/event_ring.h"
#include "pools_world.h"

namespace gma {
namespace {

// Free blocks that lie on memory in use, as a snapshot and the driver show them.
struct Split {
    std::int64_t count = 0;
    Bytes bytes = 0;
};
Split split_of(PoolsWorld& world) {
    Split split;
    for (const SegmentInfo& segment : world.allocator->snapshot(0)) {
        for (const BlockInfo& block : segment.blocks) {
            if (block.state != BlockState::Free) { continue; }
            Bytes idle = 0;
            for (const HostMapping& mapping : world.driver.mapped_ranges()) {
                const Address end = mapping.start + mapping.bytes;
                const bool inside =
                    mapping.start >= block.address && end <= block.address + block.bytes;
                idle += inside ? mapping.bytes : 0;
            }
            split.count += block.bytes > idle;
            split.bytes += block.bytes - idle;
        }
    }
    return split;
}

}  // namespace

TEST_CASE("inactive_split is what lies on memory that others use") {
    for (const char* options : {"strategy:paged", "strategy:paged,chunk_divisor:4"}) {
        CAPTURE(std::string(options));
        PoolsWorld world(48_MiB, options);
        std::mt19937_64 random(7);
        for (int i = 0; i < 250; ++i) {
            const Bytes bytes = 70_KiB + (random() % 40) * 24_KiB;
            if (random() % 3 > 0) {
                static_cast<void>(world.allocate(bytes, random() % 3 == 0 ? kTwo : kOne));
            } else if (!world.blocks.empty()) {
                auto it = world.blocks.begin();
                std::advance(it, static_cast<std::ptrdiff_t>(random() % world.blocks.size()));
                REQUIRE(world.free(it->first).ok());
            }
            world.driver.drain_all();
            const DeviceStatistics now = world.statistics();  // parks nothing any more
            const Split split = split_of(world);
            REQUIRE(now.inactive_split[0].current == split.count);
            REQUIRE(static_cast<Bytes>(now.inactive_split_bytes[0].current) == split.bytes);
        }
        world.check_nothing_left();
    }
}

TEST_CASE("the largest request that is said to succeed does, and a larger one does not") {
    for (const char* options : {"strategy:paged", "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        const bool paged = std::string(options) == "strategy:paged";
        PoolsWorld world(96_MiB, options);
        REQUIRE(world.allocator->set_limit(0, 64_MiB).ok());
        std::mt19937_64 random(11);
        int tried_count = 0;
        for (int i = 0; i < 120; ++i) {
            const Bytes bytes = (random() % 60 + 1) * 100_KiB;
            if (random() % 5 < 3) {
                static_cast<void>(world.allocate(bytes, random() % 3 == 0 ? kTwo : kOne));
            } else if (!world.blocks.empty()) {
                auto it = world.blocks.begin();
                std::advance(it, static_cast<std::ptrdiff_t>(random() % world.blocks.size()));
                REQUIRE(world.free(it->first).ok());
            }
            if (i % 4 != 0) { continue; }
            world.driver.drain_all();
            const Bytes largest = world.allocator->largest_available_bytes(0);
            if (largest < 2_MiB) { continue; }  // a thread's small objects have their own ways
            ++tried_count;
            Address address = world.allocate(largest, kOne);
            // Without chunks that move, a free block serves its own stream alone.
            if (address == 0 && !paged) { address = world.allocate(largest, kTwo); }
            CAPTURE(largest);
            REQUIRE_MESSAGE(address != 0, world.last.message());
            REQUIRE(world.free(address).ok());
            world.driver.drain_all();
            if (paged) {
                CHECK(world.allocate(largest + 2 * PoolsWorld::kPage, stream_at(9)) == 0);
            }
        }
        CHECK(tried_count > 10);
        world.check_nothing_left();
    }
}

TEST_CASE("memory of private pools is not available") {
    PoolsWorld world(32_MiB);
    world.retain();
    REQUIRE(world.free(world.allocate_in(kPool, 20_MiB)).ok());
    CHECK(world.allocator->largest_available_bytes(0) == 12_MiB);
    world.release();
    world.driver.drain_all();
    CHECK(world.allocator->largest_available_bytes(0) == 32_MiB);
    world.check_nothing_left();
}

TEST_CASE("a restored pool is noted in the ring of events") {
    PoolsWorld world(32_MiB, "strategy:paged,event_ring_entries:100");
    world.retain();
    const Address first = world.allocate_in(kPool, 2_MiB);
    const std::vector<PoolBlock> state = *world.allocator->pool_state(0, kPool);
    const Address second = world.allocate_in(kPool, 3_MiB);
    const std::size_t before = world.allocator->events().read().records.size();
    REQUIRE(static_cast<bool>(world.allocator->restore_pool(0, kPool, state)));
    const std::vector<TraceRecord> events = world.allocator->events().read().records;
    REQUIRE(events.size() == before + 3);
    CHECK(events[before].action == Action::Free);
    CHECK(events[before].address == first);
    CHECK(events[before + 1].address == second);
    CHECK(events[before + 2].action == Action::Alloc);
    CHECK(events[before + 2].bytes == 2_MiB);
    world.blocks.erase(second);
    world.release();
    world.check_nothing_left();
}

}  // namespace gma
