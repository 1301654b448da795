// No caching. What every strategy must do is in the conformance suite.
#include <doctest.h>

#include "allocator_model.h"

namespace gma {
namespace {

Options direct() {
    Options options;
    options.strategy = "direct";
    return options;
}

struct Direct : AllocatorModel {
    Direct() : AllocatorModel(direct(), {}) {}

    std::uint64_t count(Call call) { return driver.totals().count(call); }
};

}  // namespace

TEST_CASE("every call goes to the driver, with the size asked for") {
    Direct model;
    for (const Bytes bytes : {1_B, 700_B, 1_MiB, 5_MiB + 1}) {
        const std::uint64_t before = model.count(Call::Malloc);
        const Address address = model.allocate(bytes);
        CHECK(model.count(Call::Malloc) == before + 1);
        REQUIRE(model.driver.segments().size() == 1);
        CHECK(model.driver.segments()[0].start == address);
        CHECK(model.driver.segments()[0].bytes == round_up(bytes, kUnitBytes));
        model.free(address);
        CHECK(model.count(Call::Free) == before + 1);
        CHECK(model.driver.segments().empty());
        CHECK(model.reserved_bytes() == 0);
    }
    model.finish();
}

TEST_CASE("a free waits for its stream, and for no other") {
    Direct model;
    const Stream other = stream_number(2);
    model.allocate(1_MiB, other);
    const Address address = model.allocate(1_MiB, stream_number(1));
    CHECK(model.driver.queued_operations(stream_number(1)) == 1);
    model.free(address);
    CHECK(model.driver.queued_operations(stream_number(1)) == 0);
    CHECK(model.driver.queued_operations(other) == 1);
    CHECK(model.statistics().num_sync_all_streams == 1);
    model.finish();
}

TEST_CASE("what is freed during a capture goes when it has ended") {
    Direct model;
    const Stream stream = stream_number(1);
    const Address before = model.allocate(3_MiB, stream);
    REQUIRE(model.allocator->begin_pool(0, {0, 1}, [](Stream) { return true; }).ok());
    model.driver.set_capturing(stream, true);
    model.free(before);
    const Address inside = model.allocate(2_MiB, stream);
    model.free(inside);
    CHECK(model.allocate(2_MiB, stream) == inside);  // the pool's own
    CHECK(model.count(Call::Free) == 0);
    model.driver.set_capturing(stream, false);
    REQUIRE(model.allocator->end_pool(0, {0, 1}).ok());
    model.free(inside);
    CHECK(model.count(Call::Free) == 1);  // `before`; a graph may still use `inside`
    REQUIRE(model.allocator->release_pool(0, {0, 1}).ok());
    CHECK(model.driver.segments().empty());
    model.finish();
}

TEST_CASE("a free that the driver refuses is counted and set aside") {
    Direct model;
    const Address address = model.allocate(3_MiB);
    model.driver.fail_kind(Call::Free, 1);
    model.free(address);
    CHECK(model.statistics().leaked_handles == 1);
    CHECK(model.reserved_bytes() == 0);
    CHECK(model.driver.segments().size() == 1);
    CHECK(*model.allocator->trim(0) == 0);
}

TEST_CASE("a free whose waiting fails is tried again") {
    Direct model;
    const Address address = model.allocate(3_MiB);
    model.driver.fail_kind(Call::Synchronize, 1, {}, 2);  // the fence's, and the device's
    model.free(address);
    CHECK(model.reserved_bytes() == 3_MiB);
    CHECK(model.statistics().leaked_handles == 0);
    model.allocate(1_MiB);
    model.driver.drain_all();
    CHECK(*model.allocator->trim(0) == 3_MiB);
    model.finish();
}

TEST_CASE("an exported block stays until it is unpinned") {
    Direct model;
    const Address address = model.allocate(3_MiB);
    REQUIRE(model.allocator->pin(address).ok());
    model.free(address);
    CHECK(model.driver.segments().size() == 1);
    CHECK(model.allocate(3_MiB) != address);
    CHECK(model.allocator->free(address).code() == Code::InvalidValue);
    REQUIRE(model.allocator->unpin(address).ok());
    model.driver.drain_all();
    model.finish();
}

}  // namespace gma
