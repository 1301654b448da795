// isolation packed and stream: redzones behind blocks that share pages, and memory that stays with
// its stream.
#include "core/isolation.h"
#include "pattern_world.h"

namespace gma {
namespace {

constexpr Bytes kPage = PatternWorld::kPage;

struct Packed : PatternWorld {
    explicit Packed(const std::string& options = "isolation:packed", Bytes capacity_bytes = 16_MiB)
        : PatternWorld(options, small_card(capacity_bytes)) {}

    std::vector<Violation> violations() { return allocator->isolation_report(0).violations; }
    void poke(Address address, Stream stream = nullptr) {
        driver.launch(stream, [address] { *reinterpret_cast<unsigned char*>(address) = 0x5A; });
    }
    // All checks that are due have been made and answered.
    void settle() {
        REQUIRE(allocator->check_isolation(0));
        driver.drain_all();
    }
};

}  // namespace

TEST_CASE("small tensors lie side by side") {
    Packed world;
    const Address first = world.allocate(40);
    const Address second = world.allocate(40);
    CHECK(second - first == 512);
    world.check_audit();
    world.check_nothing_left();
}

TEST_CASE("a write behind a tensor is found at its free") {
    for (const Bytes bytes : {Bytes{1}, Bytes{40}, Bytes{512}, Bytes{8_KiB}, Bytes{100'000}}) {
        CAPTURE(bytes);
        Packed world;
        const Stream stream = stream_at(1);
        const Address address = world.allocate(bytes, stream);
        const Address other = world.allocate(bytes, stream);
        world.poke(address + bytes, stream);
        REQUIRE(world.free(address).ok());
        REQUIRE(world.free(other).ok());
        world.settle();
        const std::vector<Violation> found = world.violations();
        REQUIRE(found.size() == 1);
        CHECK(found[0].kind == Violation::Kind::Overrun);
        CHECK(found[0].first_bad == address + bytes);
        CHECK(found[0].tensor.address == address);
        CHECK(found[0].tensor.requested_bytes == bytes);
        // What comes there next is not blamed for it.
        for (int i = 0; i < 4; ++i) { static_cast<void>(world.allocate(bytes, stream)); }
        world.free_all();
        world.settle();
        CHECK(world.violations().size() == 1);
        CHECK(world.mismatch_count == 0);
        world.check_nothing_left();
    }
}

TEST_CASE("free memory holds the pattern") {
    Packed world;
    for (int round = 0; round < 3; ++round) {
        for (const Bytes bytes : {Bytes{4096}, Bytes{3 * kPage}}) {
            const Result<Address> address = world.allocator->allocate(0, bytes, nullptr);
            REQUIRE(address);
            world.driver.drain_all();
            const auto* words = reinterpret_cast<const std::uint32_t*>(*address);
            for (Bytes i = 0; i < bytes / 4; ++i) { REQUIRE(words[i] == kPattern); }
            std::memset(reinterpret_cast<void*>(*address), round, bytes);
            REQUIRE(world.allocator->free(*address).ok());
            world.settle();
        }
    }
    world.check_audit();
}

TEST_CASE("frees of one stream are checked together") {
    Packed world;
    std::vector<Address> tensors;
    for (int i = 0; i < 1000; ++i) { tensors.push_back(world.allocate(40)); }
    const std::uint64_t before = world.driver.totals().count(Call::Check);
    for (const Address address : tensors) { REQUIRE(world.free(address).ok()); }
    CHECK(world.driver.totals().count(Call::Check) - before <= 4);
    world.settle();
    CHECK(world.violations().empty());
    world.check_nothing_left();
}

TEST_CASE("memory that waits for its check makes room when it is needed") {
    Packed world("isolation:packed", 1_MiB);
    const Address first = world.allocate(700_KiB);
    REQUIRE(world.free(first).ok());
    CHECK(world.allocate(700_KiB) != 0);
    CHECK(world.mismatch_count == 0);
    world.check_audit();
}

TEST_CASE("a double free names both, of small and large tensors") {
    for (const Bytes bytes : {Bytes{40}, Bytes{100'000}}) {
        Packed world;
        const Address address = world.allocate(bytes);
        REQUIRE(world.free(address).ok());
        CHECK(world.allocator->free(address).message().find("double free") != std::string::npos);
        world.settle();
        CHECK(world.allocator->free(address).message().find("double free") != std::string::npos);
        CHECK(world.violations().size() == 2);
    }
}

TEST_CASE("recorded streams are waited for before the check") {
    Packed world;
    for (const Bytes bytes : {Bytes{40}, Bytes{100'000}}) {
        const Address address = world.allocate(bytes, stream_at(1));
        REQUIRE(world.record(address, stream_at(2)).ok());
        REQUIRE(world.free(address).ok());
        world.driver.drain(stream_at(1));
        static_cast<void>(world.allocate(bytes, stream_at(1)));
    }
    world.settle();
    CHECK(world.violations().empty());
    CHECK(world.mismatch_count == 0);
    world.check_nothing_left();
}

TEST_CASE("no memory passes from one stream to another") {
    for (const char* options : {"isolation:stream", "isolation:packed"}) {
        CAPTURE(options);
        Packed world(options, 4_MiB);
        const Address first = world.allocate(3_MiB, stream_at(1));
        const Handle handle = world.driver.mapping_at(first)->handle;
        REQUIRE(world.free(first).ok());
        world.driver.drain_all();
        const Address second = world.allocate(2_MiB, stream_at(2));
        REQUIRE(second != 0);  // what stream 1 held went back to the driver
        CHECK(world.driver.mapping_at(second)->handle != handle);
        world.check_audit();
        world.check_nothing_left();
    }
}

TEST_CASE("a packed region has memory of its own") {
    Packed world("strategy:paged");
    const Address outside = world.allocate(100'000);
    REQUIRE(world.allocator->begin_region(Isolation::Packed, false).ok());
    const Address inside = world.allocate(100'000);
    const Address small = world.allocate(40);
    REQUIRE(world.allocator->end_region(false).ok());
    world.poke(inside + 100'000);
    world.poke(outside + 100'000);  // nobody sees this one
    for (const Address address : {outside, inside, small}) { REQUIRE(world.free(address).ok()); }
    world.settle();
    const std::vector<Violation> found = world.violations();
    REQUIRE(found.size() == 1);
    CHECK(found[0].tensor.address == inside);
    world.check_audit();
    world.check_nothing_left();
}

}  // namespace gma
