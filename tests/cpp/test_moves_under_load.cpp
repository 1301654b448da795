// Chunks move while kernels use them: a host that runs a whole step ahead of several streams, on a
// card with hardly any room, and kernels that write and check a pattern of their own in every
// block. Not one may be wrong; and the checker itself is shown to see what is.
#include <algorithm>
#include <random>

#include "pattern_world.h"

namespace gma {
namespace {

constexpr int kStepCount = GMA_SANITIZED ? 32 : 128;
constexpr int kBlocksPerStep = 40;

struct Load {
    const char* options;
    Bytes card_bytes;
    Bytes page_bytes;
    bool crosses_streams;
};

class Host {
public:
    Host(const Load& load, std::uint32_t seed)
        : world(load.options, PatternWorld::small_card(load.card_bytes, load.page_bytes)),
          card_bytes_(load.card_bytes),
          random_(seed) {}

    // One step of a training run: blocks of changing shapes live for part of it, some for longer.
    void queue_step() {
        for (int i = 0; i < kBlocksPerStep; ++i) {
            const Stream stream = stream_at(pick(3));
            const Address address = world.allocate(size(), stream);
            if (address != 0) {
                use(address);
                held_.push_back(address);
            } else {
                REQUIRE(world.last.code() == Code::OutOfMemory);
                free_some(held_.size() / 2);
            }
            while (held_.size() > 24) { free_some(1 + pick(3)); }
        }
        free_some(held_.size() * 3 / 4);
    }
    // The streams are a step behind, and not by the same amount.
    void run_streams() {
        for (std::uintptr_t number = 0; number < 3; ++number) {
            const std::size_t queued = world.driver.queued_operations(stream_at(number));
            world.driver.advance(stream_at(number), pick(queued + 1));
        }
    }
    void free_everything() { free_some(held_.size()); }
    std::size_t pick(std::size_t count) { return random_() % count; }

    PatternWorld world;

private:
    Bytes size() {
        if (pick(3) == 0) { return 1 + pick(8_KiB); }
        return 1 + pick(card_bytes_ / (Bytes{8} << pick(4)));
    }
    void use(Address address) {
        const Stream own = world.blocks.at(address).stream;
        const Stream other = stream_at(pick(3));
        if (other == own || pick(6) != 0) { return; }
        // The other stream reads what the own one wrote: it waits for it, as a user must.
        const Result<Event> written = world.driver.record(0, own);
        REQUIRE(static_cast<bool>(written));
        REQUIRE(world.driver.wait(other, *written).ok());
        world.driver.recycle(*written);
        REQUIRE(world.record(address, other).ok());
    }
    void free_some(std::size_t count) {
        for (; count > 0 && !held_.empty(); --count) {
            std::swap(held_[pick(held_.size())], held_.back());
            REQUIRE(world.free(held_.back()).ok());
            held_.pop_back();
        }
    }

    const Bytes card_bytes_;
    std::mt19937 random_;
    std::vector<Address> held_;
};

void run(const Load& load, std::uint32_t seed) {
    CAPTURE(std::string(load.options));
    CAPTURE(seed);
    Host host(load, seed);
    for (int step = 0; step < kStepCount; ++step) {
        host.queue_step();
        if (step > 0) { host.run_streams(); }
        host.world.check_audit();
        REQUIRE(host.world.mismatch_count == 0);
        if (step % 16 == 15) {
            host.free_everything();  // then chunks go home
            host.world.driver.drain_all();
        }
    }
    const DeviceStatistics now = host.world.statistics();
    // A test that moves nothing would show nothing.
    CHECK(now.moved_chunks > 10 * kStepCount);
    if (load.crosses_streams) { CHECK(now.stream_waits > kStepCount); }
    CHECK(now.leaked_handles == 0);
    host.world.check_nothing_left();
    CHECK(host.world.check_count > kStepCount * kBlocksPerStep / 2);
}

}  // namespace

TEST_CASE("chunks move under a host that runs ahead") {
    for (const std::uint32_t seed : {1U, 2U, 3U}) {
        run({"strategy:paged", 32_MiB, 64_KiB, true}, seed);
        run({"strategy:paged,slack_percent:0", 32_MiB, 64_KiB, true}, seed);
        run({"strategy:paged,chunk_divisor:8", 32_MiB, 64_KiB, true}, seed);
        run({"strategy:paged,cross_stream:passed", 32_MiB, 64_KiB, false}, seed);
        run({"strategy:paged,cross_stream:lend", 32_MiB, 64_KiB, true}, seed);
    }
}

TEST_CASE("chunks of the card's own page size move too") {
    run({"strategy:paged", 512_MiB, 2_MiB, true}, 4);
}

// The checker: a write that nobody ordered, and a block that is freed too early.
TEST_CASE("a wrong write is seen") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(32_MiB));
    const Address address = world.allocate(3_MiB, stream_at(1));
    world.driver.drain_all();
    world.launch_stray_write(address, stream_at(2));
    world.driver.drain_all();
    REQUIRE(world.free(address).ok());
    world.driver.drain_all();
    CHECK(world.mismatch_count == 1);
}

TEST_CASE("a use that record_stream was not told of is seen") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(32_MiB));
    const Address address = world.allocate(3_MiB, stream_at(1));
    world.driver.drain_all();
    world.launch_check(address, stream_at(2));  // queued, not recorded
    REQUIRE(world.free(address).ok());
    CHECK(world.allocate(3_MiB, stream_at(1)) == address);
    world.driver.drain(stream_at(1));
    world.driver.drain(stream_at(2));
    CHECK(world.mismatch_count == 1);
}

TEST_CASE("an unmap under a running kernel is seen") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(32_MiB));
    const Address address = world.allocate(3_MiB, stream_at(1));
    const auto mapping = world.driver.mapping_at(address);
    REQUIRE(mapping.has_value());
    CHECK(mapping->is_accessible);
    REQUIRE(world.free(address).ok());
    CHECK(world.driver.queued_operations(stream_at(1)) > 0);
    REQUIRE(static_cast<bool>(world.allocator->trim(0)));  // waits for the fence, then unmaps
    CHECK(world.driver.queued_operations(stream_at(1)) == 0);
    CHECK_FALSE(world.driver.mapping_at(address).has_value());
    CHECK(world.mismatch_count == 0);
}

}  // namespace gma
