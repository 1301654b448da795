// Note [Parked blocks]: what a thread freed last comes back without the device's lock, and nobody
// who looks at the device can tell.
#include <thread>

#include "pattern_world.h"

namespace gma {
namespace {

constexpr Stream kStream = nullptr;
constexpr Bytes kBytes = 3_MiB;

// Three blocks side by side: the middle one has no free neighbour.
class ParkedWorld : public PatternWorld {
public:
    explicit ParkedWorld(const char* options = "strategy:paged")
        : PatternWorld(options, small_card(64_MiB)) {
        for (Address& address : row) { address = allocate(kBytes, kStream); }
    }
    void free_blocks() {
        for (const Address address : row) { REQUIRE(free(address).ok()); }
    }
    DeviceStatistics statistics() { return allocator->statistics(0); }
    std::array<Address, 3> row{};
};

}  // namespace

TEST_CASE("the block that was freed last serves the next request of its size") {
    ParkedWorld world;
    const auto before = world.statistics();
    for (int round = 0; round < 10; ++round) {
        REQUIRE(world.free(world.row[1]).ok());
        CHECK(world.allocate(kBytes, kStream) == world.row[1]);
    }
    const auto after = world.statistics();
    CHECK(after.allocation[0].current == 3);
    CHECK(after.allocation[0].allocated == before.allocation[0].allocated + 10);
    CHECK(after.allocation[2].freed == before.allocation[2].freed + 10);
    CHECK(after.allocated_bytes[0].current == static_cast<std::int64_t>(3 * kBytes));
    CHECK(after.allocated_bytes[0].peak == before.allocated_bytes[0].peak);
    world.free_blocks();
    world.check_nothing_left();
}

TEST_CASE("a smaller request of the same rounded size is counted as what it asks for") {
    ParkedWorld world;
    REQUIRE(world.free(world.row[1]).ok());
    CHECK(world.allocate(kBytes - 100, kStream) == world.row[1]);
    CHECK(world.statistics().requested_bytes[0].current ==
          static_cast<std::int64_t>(3 * kBytes - 100));
    CHECK(world.allocator->describe(world.row[1])->bytes == kBytes - 100);
    world.free_blocks();
    CHECK(world.statistics().requested_bytes[0].current == 0);
}

TEST_CASE("a parked block is free for statistics, snapshots, other sizes and double frees") {
    ParkedWorld world;
    REQUIRE(world.free(world.row[1]).ok());
    CHECK(world.allocator->free(world.row[1]).code() == Code::InvalidValue);
    CHECK_FALSE(world.allocator->describe(world.row[1]).has_value());
    CHECK(world.allocator->record_stream(world.row[1], stream_at(1)).code() == Code::InvalidValue);
    CHECK(world.allocator->pin(world.row[1]).code() == Code::InvalidValue);
    CHECK(world.statistics().allocated_bytes[0].current == static_cast<std::int64_t>(2 * kBytes));
    REQUIRE(world.allocator->audit().ok());
    const Address half = world.allocate(kBytes / 2, kStream);
    CHECK(half == world.row[1]);
    REQUIRE(world.free(half).ok());
    REQUIRE(world.free(world.row[0]).ok());
    REQUIRE(world.free(world.row[2]).ok());
    world.check_nothing_left();
}

TEST_CASE("a stream that has the handle of another one gets nothing that the other parked") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(64_MiB));
    const Stream stream = stream_at(1);
    const Address row[] = {world.allocate(kBytes, stream), world.allocate(kBytes, stream),
                           world.allocate(kBytes, stream)};
    REQUIRE(world.free(row[1]).ok());  // its last use is queued and not done
    world.driver.destroy_stream(stream);
    world.driver.reuse_stream(stream);
    CHECK(world.allocate(kBytes, stream) != row[1]);
    world.check_nothing_left();
}

TEST_CASE("a snapshot shows a parked block as free") {
    ParkedWorld world;
    REQUIRE(world.free(world.row[1]).ok());
    Bytes allocated_bytes = 0;
    for (const SegmentInfo& segment : world.allocator->snapshot(0)) {
        for (const BlockInfo& block : segment.blocks) {
            if (block.state == BlockState::Allocated) { allocated_bytes += block.bytes; }
        }
    }
    CHECK(allocated_bytes == 2 * kBytes);
    REQUIRE(world.free(world.row[0]).ok());
    REQUIRE(world.free(world.row[2]).ok());
}

TEST_CASE("the version of the statistics tells whether they still hold") {
    ParkedWorld world;
    const Address small = world.allocate(512, kStream);
    const auto version = [&] { return world.allocator->statistics_version(0); };
    const auto settle = [&] {
        static_cast<void>(world.statistics());
        static_cast<void>(world.statistics());  // the first may have unparked a block
        return version();
    };
    const std::uint64_t settled = settle();
    CHECK(settled != 0);
    CHECK(version() == settled);
    REQUIRE(world.free(small).ok());
    CHECK(version() == 0);
    CHECK(settle() > settled);
    REQUIRE(world.free(world.row[1]).ok());
    CHECK(version() == 0);
    CHECK(settle() != 0);
    world.row[1] = world.allocate(kBytes, kStream);
    CHECK(version() == 0);
    CHECK(settle() != 0);
    world.allocator->reset_peak_statistics(0);
    CHECK(version() == 0);
    world.free_blocks();
    static_cast<void>(settle());
    REQUIRE(static_cast<bool>(world.allocator->trim(0)));
    CHECK(version() == 0);
    CHECK(world.statistics().reserved_bytes[0].current == 0);
}

TEST_CASE("what another thread has parked serves a request before the card is asked") {
    ParkedWorld world;
    std::thread([&] {
        const Address own = world.allocate(kBytes, kStream);  // the thread has a cache now
        REQUIRE(world.free(world.row[1]).ok());
        REQUIRE(world.free(own).ok());
    }).join();
    const auto made = world.statistics().num_device_alloc;
    world.row[1] = world.allocate(kBytes, kStream);
    CHECK(world.statistics().num_device_alloc == made);
    world.free_blocks();
    world.check_nothing_left();
}

TEST_CASE("a parked block joins its neighbour for a request that needs both") {
    ParkedWorld world;
    REQUIRE(world.free(world.row[0]).ok());
    REQUIRE(world.free(world.row[1]).ok());
    const Address both = world.allocate(2 * kBytes, kStream);
    CHECK(both == world.row[0]);
    REQUIRE(world.free(both).ok());
    REQUIRE(world.free(world.row[2]).ok());
    world.check_nothing_left();
}

TEST_CASE("beside a free neighbour the search has its way") {
    ParkedWorld world;
    REQUIRE(world.free(world.row[0]).ok());
    REQUIRE(world.free(world.row[1]).ok());
    CHECK(world.allocate(kBytes, kStream) == world.row[0]);
    world.row[1] = world.allocate(kBytes, kStream);
    world.free_blocks();
    world.check_nothing_left();
}

TEST_CASE("a lower place of the same size is preferred to the parked block") {
    ParkedWorld world;
    const Address fourth = world.allocate(kBytes, kStream);
    const Address fifth = world.allocate(kBytes, kStream);
    REQUIRE(world.free(world.row[1]).ok());  // parked
    REQUIRE(world.free(fourth).ok());        // parked in its stead: the lower one came up
    CHECK(world.allocate(kBytes, kStream) == world.row[1]);
    REQUIRE(world.free(fifth).ok());
    world.free_blocks();
    world.check_nothing_left();
}

}  // namespace gma
