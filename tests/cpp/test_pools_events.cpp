// Segment events: whoever replays them knows what is mapped where. And captures that the caller
// tells of: what they forbid is left alone.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "pools_world.h"

namespace gma {
namespace {

class Replay final : public EventSink {
public:
    void note(const TraceRecord& record) noexcept override {
        switch (record.action) {
            case Action::SegmentMap:
            case Action::SegmentAlloc: {
                const auto above = ranges.lower_bound(record.address);
                wrong_count +=
                    above != ranges.end() && above->first < record.address + record.bytes;
                wrong_count += !ranges.emplace(record.address, record.bytes).second;
                ++map_count;
                break;
            }
            case Action::SegmentUnmap:
            case Action::SegmentFree: {
                const auto it = ranges.find(record.address);
                wrong_count += it == ranges.end() || it->second != record.bytes;
                if (it != ranges.end()) { ranges.erase(it); }
                ++unmap_count;
                break;
            }
            default:
                break;
        }
    }
    // Neighbours joined, as a snapshot shows them.
    std::map<Address, Bytes> joined() const {
        std::map<Address, Bytes> runs;
        for (const auto& [address, bytes] : ranges) {
            if (!runs.empty() && runs.rbegin()->first + runs.rbegin()->second == address) {
                runs.rbegin()->second += bytes;
            } else {
                runs.emplace(address, bytes);
            }
        }
        return runs;
    }

    std::map<Address, Bytes> ranges;
    int wrong_count = 0;
    int map_count = 0;
    int unmap_count = 0;
};

std::map<Address, Bytes> joined_snapshot(PoolsWorld& world) {
    std::map<Address, Bytes> found;
    for (const SegmentInfo& segment : world.allocator->snapshot(0)) {
        found.emplace(segment.address, segment.bytes);
    }
    std::map<Address, Bytes> runs;
    for (const auto& [address, bytes] : found) {
        if (!runs.empty() && runs.rbegin()->first + runs.rbegin()->second == address) {
            runs.rbegin()->second += bytes;
        } else {
            runs.emplace(address, bytes);
        }
    }
    return runs;
}

// Sizes, streams and order at random; chunks move while they are in use.
void random_work(PoolsWorld& world, std::uint64_t seed, int count) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < count; ++i) {
        const Stream stream = random() % 2 == 0 ? kOne : kTwo;
        const Bytes bytes = (random() % 64 + 1) * 48_KiB;
        if (random() % 5 < 3) {
            static_cast<void>(random() % 4 == 0 ? world.allocate_in(kPool, bytes, stream)
                                                : world.allocate(bytes, stream));
        } else if (!world.blocks.empty()) {
            auto it = world.blocks.begin();
            std::advance(it, static_cast<std::ptrdiff_t>(random() % world.blocks.size()));
            REQUIRE(world.free(it->first).ok());
        }
        if (random() % 8 == 0) { world.driver.advance(stream, 20); }
        if (random() % 64 == 0) { world.trim_pool(); }
        if (random() % 100 == 0) { static_cast<void>(world.allocator->trim(0, 1_MiB)); }
    }
}

}  // namespace

TEST_CASE("replayed segment events are what is mapped and in use or free") {
    for (const char* options : {"strategy:paged", "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PoolsWorld world(48_MiB, options);
        Replay replay;
        world.allocator->set_event_sink(&replay);
        world.retain();
        for (std::uint64_t seed = 1; seed <= 6; ++seed) {
            CAPTURE(seed);
            random_work(world, seed, 300);
            CHECK(replay.wrong_count == 0);
            std::map<Address, Bytes> mapped;
            for (const HostMapping& mapping : world.driver.mapped_ranges()) {
                mapped.emplace(mapping.start, mapping.bytes);
            }
            for (const HostRange& range : world.driver.segments()) {
                mapped.emplace(range.start, range.bytes);
            }
            // Those that may still be used are told, those that are only kept are not.
            CHECK(std::includes(mapped.begin(), mapped.end(), replay.ranges.begin(),
                                replay.ranges.end()));
            if (std::string(options) != "strategy:paged") { CHECK(replay.ranges == mapped); }
            world.driver.drain_all();
            static_cast<void>(world.allocate(47_MiB, kOne));  // looks at all fences
            world.driver.drain_all();
            CHECK(replay.joined() == joined_snapshot(world));
        }
        CHECK(replay.map_count > 50);
        CHECK(replay.unmap_count > 50);
        world.free_all();
        world.driver.drain_all();
        world.release();
        world.trim();
        CHECK(replay.ranges.empty());
        world.allocator->set_event_sink(nullptr);
        world.check_nothing_left();
    }
}

// NCCL registers a pool's segments in this order, which has to be the same in all processes.
TEST_CASE("a snapshot numbers segments in the order they were made") {
    for (const char* options : {"strategy:paged", "strategy:split", "isolation:tensor"}) {
        CAPTURE(std::string(options));
        PoolsWorld world(1_GiB, options);
        std::set<std::uint64_t> serials;
        std::set<Address> known;
        for (int i = 0; i < 6; ++i) {
            if (i == 3) { REQUIRE(world.free(*known.begin()).ok()); }
            REQUIRE(world.allocate(30_MiB, i % 2 == 0 ? kOne : kTwo) != 0);
            for (const SegmentInfo& segment : world.allocator->snapshot(0)) {
                if (!known.insert(segment.address).second) { continue; }
                CHECK((serials.empty() || segment.serial > *serials.rbegin()));
                serials.insert(segment.serial);
            }
        }
        CHECK(serials.size() >= 2);
        CHECK(*serials.begin() > 0);
        random_work(world, 7, 500);
        serials.clear();
        const std::vector<SegmentInfo> segments = world.allocator->snapshot(0);
        for (const SegmentInfo& segment : segments) { serials.insert(segment.serial); }
        CHECK(serials.size() == segments.size());
        world.free_all();
        world.driver.drain_all();
    }
}

TEST_CASE("a mapping that was never usable is not told of") {
    PoolsWorld world;
    Replay replay;
    world.allocator->set_event_sink(&replay);
    REQUIRE(world.allocate(1_MiB, kOne) != 0);
    world.driver.fail_kind(Call::SetAccess, 1);
    world.driver.fail_kind(Call::Unmap, 1);
    CHECK(world.allocate(4_MiB, kOne) == 0);
    CHECK(world.driver.faults_fired() == 2);
    CHECK(replay.joined() == joined_snapshot(world));
    world.driver.clear_faults();
    REQUIRE(world.allocate(60_MiB, kOne) != 0);
    CHECK(replay.wrong_count == 0);
    CHECK(replay.joined() == joined_snapshot(world));
    world.allocator->set_event_sink(nullptr);
    world.check_nothing_left();
}

// A capture that no pool was begun for: nobody but the caller can know.
TEST_CASE("while a told capture runs nothing is asked of the driver that it forbids") {
    for (const char* options : {"strategy:paged", "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PoolsWorld world(64_MiB, options);
        const Address recorded = world.allocate(2_MiB, kOne);
        const Address also_recorded = world.allocate(600, kOne);
        const Address large = world.allocate(9_MiB, kOne);
        const Address other = world.allocate(6_MiB, kTwo);
        world.driver.drain_all();
        REQUIRE(world.record(recorded, kTwo).ok());
        REQUIRE(world.record(also_recorded, kTwo).ok());

        world.allocator->begin_capture(0);
        world.allocator->begin_capture(0);
        world.driver.set_capturing(kTwo, true);
        world.allocator->end_capture(0);  // one of two
        const auto calls = world.driver.totals().counts;
        REQUIRE(world.free(recorded).ok());
        REQUIRE(world.free(also_recorded).ok());
        REQUIRE(world.free(large).ok());
        CHECK(world.statistics().active[0].current == 3);
        CHECK(world.allocate(1_MiB, kTwo) != 0);  // without its number
        CHECK(world.allocate(700, kTwo) != 0);
        CHECK(world.allocate(700, kOne) != 0);
        static_cast<void>(world.allocate(60_MiB, kOne));
        static_cast<void>(world.allocator->trim(0));
        static_cast<void>(world.allocator->trim_pool(0, kPool));
        REQUIRE(world.allocator->set_limit(0, 1_MiB).ok());
        REQUIRE(world.free(other).ok());
        const auto now = world.driver.totals().counts;
        for (const Call call :
             {Call::Unmap, Call::Release, Call::Free, Call::Event, Call::Wait, Call::Synchronize}) {
            CAPTURE(static_cast<int>(call));
            CHECK(now[static_cast<std::size_t>(call)] == calls[static_cast<std::size_t>(call)]);
        }
        world.driver.set_capturing(kTwo, false);
        world.allocator->end_capture(0);
        CHECK(world.driver.capture_violations() == 0);
        REQUIRE(world.allocator->set_limit(0, 64_MiB).ok());
        world.driver.drain_all();
        CHECK(world.allocate(40_MiB, kOne) != 0);  // all of it can be had again
        world.check_nothing_left();
    }
}

}  // namespace gma
