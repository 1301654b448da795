// Note [Retry ladder] as its users meet it: what is tried before an allocation fails, in which
// order, and what is left alone.
#include <thread>

#include "pattern_world.h"

namespace gma {
namespace {

constexpr Bytes kCard = 64_MiB;
const Stream kOne = stream_at(1);
const Stream kTwo = stream_at(2);
const Stream kThree = stream_at(3);
const char* const kPaged = "strategy:paged";

HostDriverConfig card(Bytes bytes = kCard) { return PatternWorld::small_card(bytes); }

void launch_nothing(HostDriver& driver, Stream stream) {
    driver.launch(stream, [] {});
}

}  // namespace

// pytorch#189504: there, the first attempt fails and only the second one succeeds.
TEST_CASE("a recorded block that is still in use is waited for, and nothing else is") {
    for (const char* options : {kPaged, "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PatternWorld world(options, card());
        const Address address = world.allocate(48_MiB, kOne);
        world.driver.drain_all();
        REQUIRE(world.record(address, kTwo).ok());
        launch_nothing(world.driver, kThree);
        REQUIRE(world.free(address).ok());
        CHECK(world.allocate(48_MiB, kOne) != 0);
        CHECK(world.driver.queued_operations(kTwo) == 0);    // its event suffices
        CHECK(world.driver.queued_operations(kThree) == 1);  // nobody waited for this one
        CHECK(world.statistics().num_sync_all_streams >= 1);
        CHECK(world.statistics().num_ooms == 0);
        world.check_nothing_left();
    }
}

TEST_CASE("waiting stops as soon as what is done suffices") {
    PatternWorld world(kPaged, card());
    const Address first = world.allocate(30_MiB, kOne);
    const Address second = world.allocate(30_MiB, kOne);
    world.driver.drain_all();
    REQUIRE(world.record(first, kTwo).ok());
    REQUIRE(world.record(second, kThree).ok());
    REQUIRE(world.free(first).ok());
    REQUIRE(world.free(second).ok());
    CHECK(world.allocate(20_MiB, kOne) != 0);
    CHECK(world.driver.queued_operations(kTwo) == 0);
    CHECK(world.driver.queued_operations(kThree) > 0);
    CHECK(world.statistics().num_sync_all_streams == 1);
    world.check_nothing_left();
}

// pytorch#71616: there, a slow stream's event at the head of the queue holds back all others.
TEST_CASE("a slow stream holds back only what it uses") {
    for (const Bytes bytes : {700_B, 2_MiB}) {
        CAPTURE(bytes);
        PatternWorld world(kPaged, card());
        const Address slow = world.allocate(bytes, kOne);
        REQUIRE(world.record(slow, kTwo).ok());
        REQUIRE(world.free(slow).ok());
        std::vector<Address> others;
        for (int i = 0; i < 10; ++i) { others.push_back(world.allocate(bytes, kOne)); }
        for (const Address address : others) {
            REQUIRE(world.record(address, kThree).ok());
            REQUIRE(world.free(address).ok());
        }
        world.driver.drain(kOne);
        world.driver.drain(kThree);
        CHECK(world.allocate(1_MiB + 1, kOne) != 0);  // asks which fences have passed
        CHECK(world.statistics().active[0].current == 2);
        CHECK(world.driver.queued_operations(kTwo) > 0);
        CHECK(world.statistics().num_sync_all_streams == 0);
        world.check_nothing_left();
    }
}

TEST_CASE("a full card gives a clean error, and everything works afterwards") {
    for (const char* options : {kPaged, "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PatternWorld world(options, card(223 * 2_MiB + 1_MiB));
        std::vector<Address> held;
        while (const Address address = world.allocate(2_MiB, kOne)) { held.push_back(address); }
        CHECK(world.last.code() == Code::OutOfMemory);
        CHECK(world.last.message().find("2.00 MiB") != std::string::npos);
        if (options == kPaged || world.allocator->strategy(0) == Strategy::Direct) {
            CHECK(held.size() == 223);
        }
        CHECK(world.statistics().num_ooms == 1);
        world.check_audit();
        for (std::size_t i = 0; i < held.size(); i += 2) { REQUIRE(world.free(held[i]).ok()); }
        if (options == kPaged) {  // every other one: no two are neighbours
            CHECK(world.allocate(held.size() / 2 * 2_MiB, kOne) != 0);
        }
        world.check_nothing_left();
    }
}

TEST_CASE("callbacks run without a lock and may free") {
    for (const char* options : {kPaged, "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PatternWorld world(options, card());
        const Address spare = world.allocate(40_MiB, kOne);
        int call_count = 0;
        world.allocator->add_out_of_memory_callback([&](const OutOfMemoryReport& report) {
            ++call_count;
            CHECK(report.requested_bytes == 50_MiB);
            CHECK(report.limit_bytes == kCard);
            CHECK(report.live_bytes == 40_MiB);
            CHECK_FALSE(report.cause.empty());
            // Another thread may use the allocator meanwhile, and so may this one.
            std::thread([&] {
                const Result<Address> other = world.allocator->allocate(0, 600, kTwo);
                CHECK(static_cast<bool>(other));
                CHECK(world.allocator->free(*other).ok());
            }).join();
            if (call_count == 1) { return false; }
            REQUIRE(world.free(spare).ok());
            return true;
        });
        CHECK(world.allocate(50_MiB, kOne) == 0);
        CHECK(world.last.code() == Code::OutOfMemory);
        CHECK(world.allocate(50_MiB, kOne) != 0);
        CHECK(call_count == 2);
        world.check_nothing_left();
    }
}

TEST_CASE("thread caches are drained before the limit is reached for") {
    PatternWorld world(kPaged, card());
    std::thread([&] {
        std::vector<Address> held;
        for (int i = 0; i < 2000; ++i) {
            const Result<Address> address = world.allocator->allocate(0, 8000, kOne);
            REQUIRE(static_cast<bool>(address));
            held.push_back(*address);
        }
        for (const Address address : held) { REQUIRE(world.allocator->free(address).ok()); }
        // Still alive, with its caches, while the other thread asks for everything.
        std::thread([&] { CHECK(world.allocate(63_MiB, kTwo) != 0); }).join();
    }).join();
    CHECK(world.statistics().num_ooms == 0);
    world.check_nothing_left();
}

TEST_CASE("lowering the limit gives idle memory back at once") {
    for (const char* options : {kPaged, "strategy:split"}) {
        CAPTURE(std::string(options));
        PatternWorld world(options, card());
        const Address kept = world.allocate(10_MiB, kOne);
        const Address idle = world.allocate(40_MiB, kOne);
        REQUIRE(world.free(idle).ok());
        world.driver.drain_all();
        REQUIRE(world.allocator->set_limit(0, 16_MiB).ok());
        CHECK(world.reserved_bytes() <= 16_MiB);
        CHECK(world.driver.held_bytes(0) <= 16_MiB);
        CHECK(world.allocate(8_MiB, kOne) == 0);
        CHECK(world.last.code() == Code::OutOfMemory);
        CHECK(world.allocator->limit(0) == 16_MiB);
        REQUIRE(world.free(kept).ok());
        world.check_nothing_left();
    }
}

// What another process holds is not ours to count on: the limit cannot tell, the card does.
TEST_CASE("idle memory serves when others hold the rest of the card") {
    for (const char* options : {kPaged, "strategy:paged,chunk_divisor:4", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PatternWorld world(options, card());
        std::vector<Address> held;
        for (int i = 0; i < 8; ++i) { held.push_back(world.allocate(3_MiB, kOne)); }
        const Result<CardMemory> memory = world.driver.card_memory(0);
        REQUIRE(static_cast<bool>(memory));
        const Result<Address> others = world.driver.malloc(0, memory->free_bytes);
        REQUIRE(static_cast<bool>(others));
        for (std::size_t i = 0; i < held.size(); i += 2) { REQUIRE(world.free(held[i]).ok()); }
        if (options == kPaged) { CHECK(world.allocate(9_MiB, kOne) != 0); }
        CHECK(world.allocate(2_MiB, kTwo) != 0);
        CHECK(world.allocate(40_MiB, kTwo) == 0);
        CHECK(world.last.code() == Code::OutOfMemory);
        CHECK(world.allocator->limit(0) == kCard);
        REQUIRE(world.driver.free(0, *others).ok());
        CHECK(world.allocate(30_MiB, kTwo) != 0);
        world.check_nothing_left();
    }
}

TEST_CASE("a stream destroyed before its fence is waited for through the device") {
    for (const Bytes bytes : {700_B, 30_MiB}) {
        CAPTURE(bytes);
        PatternWorld world(kPaged, card());
        const Address address = world.allocate(bytes, kOne);
        REQUIRE(world.record(address, kTwo).ok());
        world.driver.destroy_stream(kTwo);
        REQUIRE(world.free(address).ok());
        CHECK(world.driver.queued_operations(kTwo) == 0);
        CHECK(world.allocate(bytes, kOne) == address);
        world.check_nothing_left();
    }
}

TEST_CASE("memory of a destroyed stream serves others, after its work") {
    PatternWorld world(kPaged, card());
    REQUIRE(world.free(world.allocate(60_MiB, kOne)).ok());
    world.driver.destroy_stream(kOne);
    CHECK(world.allocate(60_MiB, kTwo) != 0);
    CHECK(world.statistics().num_ooms == 0);
    world.check_nothing_left();
}

TEST_CASE("a stream handle that is used again is another stream") {
    for (const Bytes bytes : {3_MiB, 20_MiB}) {
        CAPTURE(bytes);
        PatternWorld world(kPaged, card());
        const Address address = world.allocate(bytes, kOne);
        REQUIRE(world.free(address).ok());  // its work is still queued
        world.driver.destroy_stream(kOne);
        world.driver.reuse_stream(kOne);
        const Address anew = world.allocate(bytes, kOne);
        CHECK(anew != 0);
        CHECK(anew != address);
        world.driver.drain(kOne);
        world.check_nothing_left();
    }
}

// Private pools and captures.

TEST_CASE("a pool's memory is neither moved nor shared until it is released") {
    PatternWorld world(kPaged, card());
    const PoolId pool{0, 9};
    REQUIRE(
        world.allocator->begin_pool(0, pool, [](Stream stream) { return stream == kOne; }).ok());
    const Address inside = world.allocate(20_MiB, kOne);
    const Address also = world.allocate(20_MiB, kOne);
    REQUIRE(world.free(inside).ok());
    REQUIRE(world.allocator->end_pool(0, pool).ok());
    world.driver.drain_all();
    const auto mapping = world.driver.mapping_at(inside);
    REQUIRE(mapping.has_value());

    CHECK(world.allocate(30_MiB, kOne) == 0);  // would fit if the pool gave
    CHECK(world.allocate(30_MiB, kTwo) == 0);
    REQUIRE(static_cast<bool>(world.allocator->trim(0)));
    const auto later = world.driver.mapping_at(inside);
    REQUIRE(later.has_value());
    CHECK(later->handle == mapping->handle);
    CHECK(world.statistics().moved_chunks == 0);

    REQUIRE(world.allocator->release_pool(0, pool).ok());
    CHECK(world.allocate(30_MiB, kTwo) != 0);
    REQUIRE(world.free(also).ok());
    world.check_nothing_left();
}

// A graph is launched on any stream: the capturing stream's fences say nothing about its memory.
TEST_CASE("a graph's memory is waited for through the device once its pool is released") {
    PatternWorld world(kPaged, card());
    const PoolId pool{0, 9};
    REQUIRE(
        world.allocator->begin_pool(0, pool, [](Stream stream) { return stream == kOne; }).ok());
    world.driver.set_capturing(kOne, true);
    const Address block = world.allocate(40_MiB, kOne);
    REQUIRE(block != 0);
    world.driver.set_capturing(kOne, false);
    REQUIRE(world.allocator->end_pool(0, pool).ok());

    int launches = 0;
    world.driver.launch(kTwo, [&] {
        *reinterpret_cast<volatile std::uint64_t*>(block) = 7;  // faults if it was unmapped
        ++launches;
    });
    REQUIRE(world.free(block).ok());
    REQUIRE(world.allocator->release_pool(0, pool).ok());
    CHECK(launches == 0);
    CHECK(world.allocate(40_MiB, kOne) != 0);  // needs the graph's memory: the card is too small
    CHECK(launches == 1);
    world.check_nothing_left();
}

TEST_CASE("frees with recorded streams wait for the end of a capture") {
    for (const Bytes bytes : {700_B, 4_MiB}) {
        CAPTURE(bytes);
        PatternWorld world(kPaged, card());
        const PoolId pool{1, 0};
        const Address before = world.allocate(bytes, kTwo);
        REQUIRE(world.record(before, kThree).ok());
        REQUIRE(world.allocator->begin_pool(0, pool, [](Stream stream) { return stream == kOne; })
                    .ok());
        world.driver.set_capturing(kOne, true);
        const Address inside = world.allocate(bytes, kOne);
        REQUIRE(world.allocator->record_stream(inside, kThree).ok());
        REQUIRE(world.free(before).ok());
        REQUIRE(world.free(inside).ok());
        CHECK(world.statistics().active[0].current == 2);
        world.driver.drain(kTwo);
        world.driver.drain(kThree);
        static_cast<void>(world.allocate(3_MiB, kOne));
        static_cast<void>(world.allocate(3_MiB, kTwo));
        CHECK(world.statistics().active[0].current == 4);  // nobody could tell yet
        CHECK(world.driver.capture_violations() == 0);

        world.driver.set_capturing(kOne, false);
        REQUIRE(world.allocator->end_pool(0, pool).ok());
        world.driver.drain_all();
        static_cast<void>(world.allocate(5_MiB, kTwo));
        CHECK(world.statistics().active[0].current == 3);
        REQUIRE(world.allocator->release_pool(0, pool).ok());
        world.check_nothing_left();
    }
}

// Another stream may allocate during a capture: what a capture forbids is forbidden to it too.
TEST_CASE("no call that a capture forbids, whoever asks") {
    PatternWorld world(kPaged, card());
    const Address kept = world.allocate(100_KiB, kTwo);
    const Address moved = world.allocate(20_MiB, kTwo);
    REQUIRE(world.free(moved).ok());
    const Address larger = world.allocate(30_MiB, kTwo);  // moves, and leaves a stale range
    const Address recorded = world.allocate(1_MiB + 1, kTwo);
    REQUIRE(world.record(recorded, kThree).ok());
    REQUIRE(world.free(recorded).ok());

    const PoolId pool{1, 1};
    REQUIRE(
        world.allocator->begin_pool(0, pool, [](Stream stream) { return stream == kOne; }).ok());
    world.driver.set_capturing(kOne, true);
    const Address inside = world.allocate(1_MiB, kOne);
    for (const Bytes bytes : {600_B, 2_MiB, 50_MiB}) {
        CAPTURE(bytes);
        for (const Stream stream : {kOne, kTwo, kThree}) {
            static_cast<void>(world.allocate(bytes, stream));
            CHECK(world.driver.capture_violations() == 0);
        }
    }
    static_cast<void>(world.allocator->trim(0));
    static_cast<void>(world.allocator->set_limit(0, 20_MiB));
    CHECK(world.driver.capture_violations() == 0);
    REQUIRE(world.free(inside).ok());
    REQUIRE(world.free(larger).ok());
    REQUIRE(world.free(kept).ok());
    world.free_all();  // all that is live, so that chunks want to go home
    static_cast<void>(world.allocate(2_MiB, kTwo));
    CHECK(world.driver.capture_violations() == 0);
    world.driver.set_capturing(kOne, false);
    REQUIRE(world.allocator->end_pool(0, pool).ok());
    REQUIRE(world.allocator->release_pool(0, pool).ok());
    world.check_nothing_left();
}

TEST_CASE("a stream that does not capture keeps its own memory during a capture") {
    PatternWorld world(kPaged, card());
    const Address cached = world.allocate(3_MiB, kTwo);
    const Address kept = world.allocate(1_MiB, kTwo);
    REQUIRE(world.free(cached).ok());
    const PoolId pool{1, 2};
    REQUIRE(
        world.allocator->begin_pool(0, pool, [](Stream stream) { return stream == kOne; }).ok());
    world.driver.set_capturing(kOne, true);
    const Address inside = world.allocate(1_MiB, kOne);
    CHECK(world.allocate(3_MiB, kTwo) == cached);
    CHECK(world.driver.capture_violations() == 0);
    world.driver.set_capturing(kOne, false);
    REQUIRE(world.allocator->end_pool(0, pool).ok());
    REQUIRE(world.free(inside).ok());
    REQUIRE(world.free(kept).ok());
    REQUIRE(world.allocator->release_pool(0, pool).ok());
    world.check_nothing_left();
}

TEST_CASE("exported memory stays put, also when its block is freed") {
    for (const char* options : {kPaged, "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PatternWorld world(options, card());
        const Address exported = world.allocate(20_MiB, kOne);
        REQUIRE(world.allocator->pin(exported).ok());
        REQUIRE(world.free(exported).ok());
        world.driver.drain_all();
        for (int i = 0; i < 20; ++i) {
            const Address address = world.allocate(3_MiB, i % 2 == 0 ? kOne : kTwo);
            if (address == 0) { continue; }
            CHECK((address + 3_MiB <= exported || exported + 20_MiB <= address));
        }
        REQUIRE(static_cast<bool>(world.allocator->trim(0)));
        REQUIRE(world.allocator->unpin(exported).ok());
        world.check_nothing_left();
    }
}

}  // namespace gma
