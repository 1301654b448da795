// The model of PyTorch's native policy, against its rules written out by hand.
#include <doctest.h>

#include <random>
#include <vector>

#include "replay/native_model.h"

namespace gma {
namespace {

NativeConfig expandable_config() {
    NativeConfig config;
    config.expandable = true;
    return config;
}

TEST_CASE("segments follow the size of the request") {
    const NativeConfig config;
    const std::pair<Bytes, Bytes> cases[] = {
        {1, 2_MiB},           {1_MiB, 2_MiB},       {1_MiB + 1, 20_MiB},  {10_MiB - 512, 20_MiB},
        {10_MiB - 1, 10_MiB}, {10_MiB + 1, 12_MiB}, {12_MiB + 5, 14_MiB},
    };
    for (const auto& [requested_bytes, segment_bytes] : cases) {
        CAPTURE(requested_bytes);
        CHECK(config.segment_bytes(config.block_bytes(requested_bytes)) == segment_bytes);
    }
    CHECK(config.block_bytes(1) == 512);
    CHECK(config.block_bytes(513) == 1024);
}

TEST_CASE("a request takes the smallest block of its stream, the lowest among equals") {
    NativeModel model({}, {}, 8);
    CHECK(model.allocate(0, 30_MiB, 0, 0));
    CHECK(model.allocate(1, 24_MiB, 0, 0));
    CHECK(model.allocate(2, 24_MiB, 0, 0));
    const Address lowest = model.address(1);
    model.free(2);
    model.free(0);
    model.free(1);
    CHECK(model.allocate(3, 23_MiB, 7, 0));  // another stream's blocks are not used
    CHECK(model.held_bytes() == 102_MiB);
    CHECK(model.allocate(4, 23_MiB, 0, 0));
    CHECK(model.address(4) == lowest);
    CHECK(model.allocate(5, 12_MiB, 0, 0));  // best fit: the other one of 24 MiB
    CHECK(model.held_bytes() == 102_MiB);
    CHECK(model.audit());
}

TEST_CASE("a rest is split off a large block only above 1 MiB") {
    NativeModel model({}, {}, 4);
    CHECK(model.allocate(0, 19_MiB, 0, 0));
    model.free(0);
    CHECK(model.allocate(1, 9_MiB, 0, 0));
    CHECK(model.allocate(2, 9_MiB, 0, 0));  // 20 = 9 + 9, and 2 MiB more
    CHECK(model.held_bytes() == 20_MiB);
    CHECK(model.allocate(3, 1_MiB + 1, 0, 0));
    CHECK(model.held_bytes() == 20_MiB);
    CHECK(model.audit());
}

TEST_CASE("recorded addresses are given out per size, then counted up") {
    const Address high = 0x7f0000000000;
    NativeModel model({}, SegmentSource({{high, 20_MiB, 0, 0}, {high - 64_MiB, 20_MiB, 0, 0}}), 4);
    CHECK(model.allocate(0, 2_MiB, 0, 0));
    CHECK(model.address(0) == high);
    CHECK(model.allocate(1, 19_MiB, 0, 0));  // a segment of 20 MiB too
    CHECK(model.address(1) == high - 64_MiB);
    CHECK(model.allocate(3, 25_MiB, 0, 0));  // of this size none was recorded
    CHECK(model.address(3) < high - 64_MiB);
    CHECK(model.allocate(2, 9_MiB, 0, 0));
    CHECK(model.address(2) == high + 2_MiB);
}

TEST_CASE("a block of the start state lies where it lay") {
    NativeModel model({}, {}, 4);
    model.adopt_segment({0x7f0000000000, 40_MiB, 0, 0}, false);
    CHECK(model.adopt_block(0, 0x7f0000000000 + 10_MiB, 10_MiB));
    CHECK_FALSE(model.adopt_block(1, 0x7f0000000000 + 15_MiB, 10_MiB));
    CHECK(model.audit());
    CHECK(model.allocate(2, 10_MiB, 0, 0));
    CHECK(model.address(2) == 0x7f0000000000);
    model.free(0);
    model.free(2);
    CHECK(model.allocate(3, 40_MiB, 0, 0));
    CHECK(model.held_bytes() == 40_MiB);
    CHECK(model.audit());
}

TEST_CASE("a pending block is used again only when complete, or waited for at the limit") {
    NativeConfig config;
    config.limit_bytes = 40_MiB;
    NativeModel model(config, {}, 4);
    CHECK(model.allocate(0, 20_MiB, 0, 0));
    model.free_later(0);
    CHECK(model.allocate(1, 20_MiB, 0, 0));
    CHECK(model.held_bytes() == 40_MiB);
    CHECK(model.allocate(2, 20_MiB, 0, 0));  // waits, gives back, obtains
    CHECK(model.totals().count(Call::Synchronize) == 1);
    CHECK(model.retries() == 1);
    model.complete(0);  // already waited for
    CHECK_FALSE(model.allocate(3, 1_MiB, 0, 0));
    CHECK(model.audit());
}

TEST_CASE("expandable segments map what is missing at their end") {
    NativeModel model(expandable_config(), {}, 4);
    CHECK(model.allocate(0, 3_MiB, 0, 0));
    CHECK(model.held_bytes() == 20_MiB);
    CHECK(model.allocate(1, 30_MiB, 0, 0));
    CHECK(model.held_bytes() == 40_MiB);
    CHECK(model.address(1) == model.address(0) + 3_MiB);
    CHECK(model.allocate(2, 512, 0, 0));
    CHECK(model.held_bytes() == 42_MiB);
    CHECK(model.totals().count(Call::Create) == 3);
    CHECK(model.audit());
}

// Whatever the order of calls, the blocks tile their segments and the sums agree.
void random_calls(NativeConfig config, std::uint32_t seed) {
    constexpr std::uint32_t kBlocks = 64;
    config.limit_bytes = 120_MiB;
    NativeModel model(config, {}, kBlocks);
    std::vector<int> state(kBlocks, 0);  // 0 free, 1 live, 2 pending
    std::mt19937 random(seed);
    for (int step = 0; step < 4000; ++step) {
        const std::uint32_t id = random() % kBlocks;
        if (state[id] == 0) {
            const Bytes bytes = (Bytes{1} << (random() % 26)) + random() % 5000;
            if (model.allocate(id, bytes, random() % 3, random() % 2)) { state[id] = 1; }
        } else if (state[id] == 2) {
            model.complete(id);
            state[id] = 0;
        } else if (random() % 4 == 0) {
            model.free_later(id);
            state[id] = 2;
        } else {
            model.free(id);
            state[id] = 0;
        }
        REQUIRE(model.audit());
        REQUIRE(model.held_bytes() <= config.limit_bytes);
    }
    CHECK(model.retries() > 0);
}

TEST_CASE("random calls keep the equations") {
    for (std::uint32_t seed = 1; seed <= 3; ++seed) {
        random_calls({}, seed);
        random_calls(expandable_config(), seed);
        NativeConfig split;
        split.max_split_bytes = 20_MiB;
        split.garbage_collection_threshold = 0.6;
        random_calls(split, seed);
    }
}

}  // namespace
}  // namespace gma
