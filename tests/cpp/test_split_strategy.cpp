// PyTorch's classic policy, rule by rule. What every strategy must do is in the conformance suite.
#include <doctest.h>

#include <algorithm>
#include <string>

#include "allocator_model.h"

namespace gma {
namespace {

Options split(const std::string& more = "") {
    Result<Options> options = parse_options("strategy:split," + more);
    REQUIRE_MESSAGE(options, options.status().message());
    return *options;
}

struct Split : AllocatorModel {
    explicit Split(const std::string& more = "", HostDriverConfig config = {})
        : AllocatorModel(split(more), config) {}

    std::vector<Bytes> segment_sizes() {
        std::vector<Bytes> sizes;
        for (const HostRange& range : driver.segments()) { sizes.push_back(range.bytes); }
        std::sort(sizes.begin(), sizes.end());
        return sizes;
    }
    Bytes block_bytes(Address address) {
        for (const SegmentInfo& segment : allocator->snapshot(0)) {
            for (const BlockInfo& block : segment.blocks) {
                if (block.address == address) { return block.bytes; }
            }
        }
        return 0;
    }
    std::uint64_t count(Call call) { return driver.totals().count(call); }
};

using Sizes = std::vector<Bytes>;

}  // namespace

TEST_CASE("a segment's size follows from the request") {
    const auto segment_for = [](Bytes bytes, const char* more = "") {
        Split model(more);
        model.allocate(bytes);
        const Sizes sizes = model.segment_sizes();
        REQUIRE(sizes.size() == 1);
        return sizes[0];
    };
    CHECK(segment_for(1) == 2_MiB);
    CHECK(segment_for(1_MiB) == 2_MiB);
    CHECK(segment_for(1_MiB + 1) == 20_MiB);
    CHECK(segment_for(10_MiB - 512) == 20_MiB);
    CHECK(segment_for(10_MiB - 1) == 10_MiB);  // rounded to 512 first
    CHECK(segment_for(10_MiB + 1) == 12_MiB);
    CHECK(segment_for(12_MiB + 5) == 14_MiB);
    CHECK(segment_for(1_MiB + 1, "large_segment_size_mb:40") == 40_MiB);
    CHECK(segment_for(10_MiB, "large_segment_size_mb:40") == 10_MiB);
}

TEST_CASE("a block is cut where the rest can be of use") {
    Split model;
    CHECK(model.block_bytes(model.allocate(1)) == 512);
    CHECK(model.block_bytes(model.allocate(1000)) == 1024);
    CHECK(model.block_bytes(model.allocate(12_MiB + 5)) == 12_MiB + 512);
    CHECK(model.block_bytes(model.allocate(13_MiB + 5)) == 14_MiB);  // 1 MiB - 512 is left
    CHECK(model.block_bytes(model.allocate(13_MiB)) == 14_MiB);      // 1 MiB is left
    CHECK(model.segment_sizes() == Sizes{2_MiB, 14_MiB, 14_MiB, 14_MiB});
    model.finish();
}

TEST_CASE("the smallest block that fits is taken, the lowest among equals") {
    Split model;
    const Address big = model.allocate(40_MiB);
    const Address first = model.allocate(30_MiB);
    const Address second = model.allocate(30_MiB);
    for (const Address address : {big, first, second}) { model.free(address); }
    const Address lowest = std::min(first, second);
    const std::uint64_t calls = model.driver.fallible_calls();
    CHECK(*model.allocator->allocate(0, 25_MiB, nullptr) == lowest);
    CHECK(model.driver.fallible_calls() == calls);  // a hit makes no driver call
    CHECK(model.allocator->free(lowest).ok());
    CHECK(model.allocate(30_MiB) == lowest);
    CHECK(model.allocate(30_MiB) == std::max(first, second));
    CHECK(model.allocate(30_MiB) == big);
    model.finish();
}

TEST_CASE("small and large requests, and streams, keep to their own segments") {
    Split model;
    model.free(model.allocate(20_MiB));
    model.allocate(1_MiB);
    CHECK(model.segment_sizes() == Sizes{2_MiB, 20_MiB});
    model.allocate(20_MiB, stream_number(1));
    CHECK(model.segment_sizes() == Sizes{2_MiB, 20_MiB, 20_MiB});
    model.allocate(20_MiB);
    CHECK(model.segment_sizes() == Sizes{2_MiB, 20_MiB, 20_MiB});
    model.finish();
}

TEST_CASE("free neighbours merge, in every order") {
    std::vector<std::size_t> order = {0, 1, 2, 3};
    do {
        Split model;
        std::vector<Address> blocks;
        for (int i = 0; i < 4; ++i) { blocks.push_back(model.allocate(5_MiB)); }
        REQUIRE(model.segment_sizes() == Sizes{20_MiB});
        for (const std::size_t i : order) { model.free(blocks[i]); }
        CHECK(model.statistics().inactive_split[0].current == 0);
        CHECK(model.allocate(20_MiB) == *std::min_element(blocks.begin(), blocks.end()));
        model.finish();
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("inactive_split counts free blocks that share their segment") {
    Split model;
    const Address first = model.allocate(5_MiB);
    model.allocate(5_MiB);
    CHECK(model.statistics().inactive_split_bytes[0].current == 10_MiB);
    model.free(first);
    CHECK(model.statistics().inactive_split[0].current == 2);
    CHECK(model.statistics().inactive_split_bytes[0].current == 15_MiB);
    CHECK(model.statistics().segment[0].current == 1);
    model.finish();
}

TEST_CASE("max_split_size_mb: large blocks stay whole") {
    Split model("max_split_size_mb:30");
    const Address whole = model.allocate(50_MiB);
    model.free(whole);
    const Address small = model.allocate(25_MiB);  // does not take it
    CHECK(model.segment_sizes() == Sizes{26_MiB, 50_MiB});
    CHECK(model.allocate(31_MiB) == whole);  // wastes 19 MiB, less than 20
    CHECK(model.block_bytes(whole) == 50_MiB);
    model.free(whole);
    CHECK(model.allocate(30_MiB) != whole);  // would waste 20
    CHECK(model.block_bytes(small) == 26_MiB);
    model.finish();
}

TEST_CASE("max_non_split_rounding_mb says how much a whole block may waste") {
    Split model("max_split_size_mb:30,max_non_split_rounding_mb:40");
    const Address whole = model.allocate(69_MiB);  // 70 MiB
    model.free(whole);
    CHECK(model.allocate(31_MiB) == whole);
    model.finish();
}

TEST_CASE("max_split_size_mb: one large enough block goes when the limit is reached") {
    Split model("max_split_size_mb:30,limit_mb:120");
    const Address first = model.allocate(40_MiB);
    const Address second = model.allocate(60_MiB);
    model.free(first);
    model.free(second);
    model.allocate(22_MiB);
    CHECK(model.segment_sizes() == Sizes{22_MiB, 60_MiB});
    CHECK(model.statistics().num_alloc_retries == 0);
    model.finish();
}

TEST_CASE("max_split_size_mb: else the largest go until they suffice") {
    Split model("max_split_size_mb:30,limit_mb:120");
    for (const Address address :
         {model.allocate(40_MiB), model.allocate(36_MiB), model.allocate(32_MiB)}) {
        model.free(address);
    }
    model.allocate(70_MiB);
    CHECK(model.segment_sizes() == Sizes{32_MiB, 70_MiB});
    model.finish();
}

TEST_CASE("at the limit as much as needed is given back, the longest unused first") {
    Split model("limit_mb:100");
    std::vector<Address> held;
    for (int i = 0; i < 4; ++i) { held.push_back(model.allocate(24_MiB, stream_number(1))); }
    for (const std::size_t i : {2U, 0U, 1U, 3U}) { model.free(held[i]); }
    model.driver.drain_all();
    model.allocate(20_MiB, stream_number(2));
    std::vector<HostRange> left = model.driver.segments();
    CHECK(left.size() == 4);
    CHECK(std::none_of(left.begin(), left.end(),
                       [&](const HostRange& range) { return range.start == held[2]; }));
    CHECK(model.count(Call::Free) == 1);
    model.finish();
}

TEST_CASE("when the card is full, everything idle is given back") {
    HostDriverConfig config;
    config.capacity_bytes = 100_MiB;
    Split model("", config);
    for (int i = 0; i < 4; ++i) { model.allocate(24_MiB, stream_number(1)); }
    while (model.blocks.size() > 1) { model.free(model.blocks.begin()->first); }
    model.allocate(60_MiB, stream_number(2));
    CHECK(model.segment_sizes() == Sizes{24_MiB, 60_MiB});
    CHECK(model.statistics().num_ooms == 0);
    CHECK(model.count(Call::Synchronize) == 1);  // one fence covers the stream's three
    model.finish();
}

TEST_CASE("garbage_collection_threshold: old segments go above the share of a set limit") {
    const auto run = [](const char* more) {
        Split model(more);
        for (const Address address : {model.allocate(30_MiB), model.allocate(32_MiB),
                                      model.allocate(34_MiB), model.allocate(36_MiB)}) {
            model.free(address);
        }
        for (int i = 0; i < 20; ++i) { model.free(model.allocate(36_MiB)); }
        model.allocate(40_MiB);
        Sizes sizes = model.segment_sizes();
        model.finish();
        return sizes;
    };
    const Sizes all = {30_MiB, 32_MiB, 34_MiB, 36_MiB, 40_MiB};
    CHECK(run("") == all);
    CHECK(run("garbage_collection_threshold:0.5") == all);  // no limit is set
    CHECK(run("limit_mb:200") == all);
    CHECK(run("limit_mb:200,garbage_collection_threshold:0.9") == all);
    CHECK(run("limit_mb:200,garbage_collection_threshold:0.5") == Sizes{36_MiB, 40_MiB});
}

TEST_CASE("roundup_power2_divisions sizes blocks and segments") {
    const auto segment_of_514 = [](const char* divisions) {
        HostDriverConfig config;
        config.memory = HostMemory::AddressesOnly;
        HostDriver driver(config);
        auto allocator =
            Allocator::create(driver, split(std::string("roundup_power2_divisions:") + divisions));
        REQUIRE(static_cast<bool>(allocator));
        REQUIRE(static_cast<bool>((*allocator)->allocate(0, 514_MiB, nullptr)));
        REQUIRE(driver.segments().size() == 1);
        return driver.segments()[0].bytes;
    };
    CHECK(segment_of_514("1") == 1024_MiB);
    CHECK(segment_of_514("2") == 768_MiB);
    CHECK(segment_of_514("4") == 640_MiB);
    CHECK(segment_of_514("8") == 576_MiB);
    CHECK(segment_of_514("[256:2,>:1]") == 1024_MiB);
    CHECK(segment_of_514("0") == 514_MiB);
}

TEST_CASE("a released pool's memory serves its stream and can be given back") {
    Split model;
    const PoolId pool{0, 5};
    const Stream stream = stream_number(1);
    REQUIRE(model.allocator->begin_pool(0, pool, [](Stream) { return true; }).ok());
    const Address kept = model.allocate(4_MiB, stream);
    const Address freed = model.allocate(6_MiB, stream);
    model.free(freed);
    REQUIRE(model.allocator->end_pool(0, pool).ok());
    CHECK(model.allocate(6_MiB, stream) != freed);
    REQUIRE(model.allocator->release_pool(0, pool).ok());
    CHECK(model.allocate(16_MiB, stream) == freed);  // with the rest of its segment
    model.free(kept);
    model.finish();
}

TEST_CASE("where nothing can be mapped, paged becomes split") {
    HostDriverConfig config;
    config.mapping_supported = false;
    AllocatorModel never(Options{}, config);
    CHECK(never.allocator->strategy(0) == Strategy::Split);
    never.allocate(3_MiB);
    never.allocate(100);
    never.finish();
    for (const Bytes bytes : {100_B, 3_MiB}) {
        AllocatorModel at_first(Options{}, HostDriverConfig{});
        CHECK(at_first.allocator->strategy(0) == Strategy::Paged);
        at_first.driver.fail_kind(Call::Map, 1, Code::NotSupported);
        at_first.allocate(bytes);
        CHECK(at_first.allocator->strategy(0) == Strategy::Split);
        at_first.allocate(3_MiB, stream_number(1));
        at_first.finish();
    }
}

}  // namespace gma
