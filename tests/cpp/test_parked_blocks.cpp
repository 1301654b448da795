// Note [Parked blocks]: what a thread freed last comes back without the device's lock, and nobody
// who looks at the device can tell.
#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

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

// As PyTorch's backward has it: the main thread waits meanwhile, and takes nothing again.
TEST_CASE("what a thread has parked serves another thread's request") {
    ParkedWorld world;
    const Address above = world.allocate(12_MiB, kStream);
    REQUIRE(world.free(above).ok());
    REQUIRE(world.free(world.row[1]).ok());
    Address half = 0;
    std::thread([&] { half = world.allocate(kBytes / 2, kStream); }).join();
    CHECK(half == world.row[1]);  // and not above
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

TEST_CASE("statistics bear the version that they hold for") {
    ParkedWorld world;
    static_cast<void>(world.statistics());  // the first look finds a block parked, and counts it
    const auto first = world.statistics();
    CHECK(world.allocator->statistics_version(0) == first.version);
    REQUIRE(world.free(world.row[1]).ok());
    CHECK(world.allocator->statistics_version(0) != first.version);
    static_cast<void>(world.statistics());
    CHECK(world.statistics().version > first.version);  // another thread's look is another version
    REQUIRE(world.free(world.row[0]).ok());
    REQUIRE(world.free(world.row[2]).ok());
}

TEST_CASE("pools, pins and empty slabs change the version of the statistics") {
    ParkedWorld world;
    Allocator& allocator = *world.allocator;
    const PoolId pool{3, 1};
    const Address small = world.allocate(512, kStream);
    const auto changes = [&](auto&& call) {
        static_cast<void>(world.statistics());
        static_cast<void>(world.statistics());
        REQUIRE(allocator.statistics_version(0) != 0);
        call();
        return allocator.statistics_version(0) == 0;
    };
    CHECK(changes([&] { REQUIRE(allocator.retain_pool(0, pool, nullptr).ok()); }));
    CHECK(allocator.pool_bytes(0).size() == 1);
    CHECK(changes([&] { REQUIRE(allocator.release_pool(0, pool).ok()); }));
    CHECK(changes([&] { REQUIRE(allocator.reserve(0, 1_MiB, kStream).ok()); }));
    REQUIRE(allocator.pin(world.row[1]).ok());
    REQUIRE(world.free(world.row[1]).ok());
    CHECK(changes([&] { REQUIRE(allocator.unpin(world.row[1]).ok()); }));
    REQUIRE(world.free(small).ok());
    CHECK(changes([&] { CHECK(allocator.largest_available_bytes(0) > 0); }));
    REQUIRE(world.free(world.row[0]).ok());
    REQUIRE(world.free(world.row[2]).ok());
    world.check_nothing_left();
}

// The callback is one who looks at the statistics between a failure and its being counted.
TEST_CASE("a failure is counted after callbacks that ask for statistics") {
    ParkedWorld world;
    world.allocator->add_out_of_memory_callback(
        [&](const OutOfMemoryReport&) { return world.statistics().num_ooms > 1000; });
    CHECK(world.allocate(1_GiB, kStream) == 0);
    CHECK(world.allocator->statistics_version(0) == 0);
    CHECK(world.statistics().num_ooms == 1);
    world.free_blocks();
}

TEST_CASE("small objects that come and go beside a parked block make no peak of their own") {
    for (const Bytes bytes : {Bytes{64_KiB}, kBytes}) {  // of the small pool, of the large one
        CAPTURE(bytes);
        ParkedWorld world;
        std::array<Address, 3> row{};
        for (Address& address : row) { address = world.allocate(bytes, kStream); }
        REQUIRE(world.free(world.allocate(512, kStream)).ok());  // its slab stays
        world.allocator->reset_peak_statistics(0);
        const auto before = world.statistics();
        REQUIRE(world.free(row[1]).ok());
        std::vector<Address> small;
        for (int i = 0; i < 10; ++i) { small.push_back(world.allocate(512, kStream)); }
        for (const Address address : small) { REQUIRE(world.free(address).ok()); }
        CHECK(world.allocate(bytes, kStream) == row[1]);
        const auto after = world.statistics();
        const bool is_small = stat_pool(bytes) == StatPool::Small;
        const auto meanwhile = is_small ? static_cast<std::int64_t>(bytes) : 0;
        CHECK(after.allocation[0].peak == before.allocation[0].current + 9);
        CHECK(after.allocation[1].peak == before.allocation[1].current + (is_small ? 9 : 10));
        CHECK(after.allocated_bytes[0].peak == before.allocated_bytes[0].current);
        CHECK(after.allocated_bytes[1].peak ==
              before.allocated_bytes[1].current + std::max<std::int64_t>(5120 - meanwhile, 0));
        world.free_all();
        world.check_nothing_left();
    }
}

TEST_CASE("a block that is parked while another thread counts is counted the next time") {
    ParkedWorld world;
    Allocator& allocator = *world.allocator;
    int stale_count = 0;
    for (int round = 0; round < 400; ++round) {
        std::atomic<int> phase{0};
        std::thread parking([&] {
            const Address own = *allocator.allocate(0, kBytes, kStream);  // so it has a cache
            static_cast<void>(allocator.free(own));
            phase = 1;
            for (int i = 0; i < 400; ++i) {
                static_cast<void>(allocator.free(world.row[1]));
                world.row[1] = *allocator.allocate(0, kBytes, kStream);
            }
            static_cast<void>(allocator.free(world.row[1]));
            phase = 2;
            while (phase != 3) { std::this_thread::yield(); }
        });
        while (phase == 0) { std::this_thread::yield(); }
        DeviceStatistics last;
        while (phase != 2) { last = world.statistics(); }
        const bool holds = allocator.statistics_version(0) != 0;
        stale_count += holds && last.allocation[0].freed != world.statistics().allocation[0].freed;
        phase = 3;
        parking.join();
        world.row[1] = *allocator.allocate(0, kBytes, kStream);
    }
    CHECK(stale_count == 0);
    for (const Address address : world.row) { REQUIRE(allocator.free(address).ok()); }
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

TEST_CASE("the last block before free memory is parked while nothing else changes") {
    ParkedWorld world;
    const auto made = world.statistics().num_device_alloc;
    for (int round = 0; round < 5; ++round) {
        REQUIRE(world.free(world.row[2]).ok());  // behind it lies the rest of its chunk, or a hole
        CHECK(world.allocate(kBytes, kStream) == world.row[2]);
    }
    CHECK(world.statistics().num_device_alloc == made);
    REQUIRE(world.free(world.row[0]).ok());  // now a smaller place is there
    REQUIRE(world.free(world.row[2]).ok());
    CHECK(world.allocate(kBytes, kStream) == world.row[0]);
    REQUIRE(world.free(world.row[0]).ok());
    REQUIRE(world.free(world.row[1]).ok());
    world.check_nothing_left();
}

TEST_CASE("while a free waits for another stream, each request asks whether it is done") {
    for (const Bytes waiting_bytes : {kBytes, Bytes{512}}) {
        CAPTURE(waiting_bytes);
        ParkedWorld world;
        const Address waiting = world.allocate(waiting_bytes, kStream);
        const auto active = world.statistics().active_bytes[0].current;
        REQUIRE(world.record(waiting, stream_at(1)).ok());
        REQUIRE(world.free(waiting).ok());
        REQUIRE(world.free(world.row[1]).ok());
        world.driver.drain_all();
        world.row[1] = world.allocate(kBytes, kStream);
        CHECK(world.statistics().active_bytes[0].current ==
              active - static_cast<std::int64_t>(waiting_bytes));
        world.free_blocks();
        world.check_nothing_left();
    }
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
