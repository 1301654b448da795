// isolation tensor and strict: memory and addresses of its own for each block, between guards.
#include <set>

#include "core/isolation.h"
#include "pattern_world.h"

namespace gma {
namespace {

constexpr Bytes kPage = PatternWorld::kPage;

struct Guarded : PatternWorld {
    explicit Guarded(const std::string& options = "isolation:tensor", Bytes capacity_bytes = 16_MiB)
        : PatternWorld(options, small_card(capacity_bytes)) {}

    bool is_mapped(Address address) { return driver.mapping_at(address).has_value(); }
    std::vector<Violation> violations() { return allocator->isolation_report(0).violations; }
    // As a kernel would.
    void poke(Address address, Stream stream = nullptr) {
        driver.launch(stream, [address] { *reinterpret_cast<unsigned char*>(address) = 0x5A; });
    }
    LedgerEntry entry(Address address) {
        for (const LedgerEntry& entry : allocator->ledger(0)) {
            if (entry.address == address) { return entry; }
        }
        FAIL("no such entry");
        return {};
    }
};

}  // namespace

TEST_CASE("a tensor lies against unmapped addresses") {
    SUBCASE("above it") {
        Guarded world;
        const Address address = world.allocate(1000);
        CHECK(address % 512 == 0);
        CHECK(world.is_mapped(address + 1023));
        CHECK(!world.is_mapped(address + 1024));
    }
    SUBCASE("below it") {
        Guarded world("isolation:tensor,guard:lower");
        const Address address = world.allocate(1000);
        CHECK(world.is_mapped(address));
        CHECK(!world.is_mapped(address - 1));
    }
    SUBCASE("as close as the alignment allows") {
        Guarded world("isolation:tensor,guard_alignment:16");
        const Address address = world.allocate(1000);
        CHECK(address % 16 == 0);
        CHECK(world.is_mapped(address + 1007));
        CHECK(!world.is_mapped(address + 1008));
    }
    SUBCASE("and both sides of its pages are guards") {
        Guarded world;
        const Address address = world.allocate(3 * kPage + 1);
        const Address end = round_up(address + 3 * kPage + 1, kPage);
        CHECK(!world.is_mapped(end));
        CHECK(world.is_mapped(end - 4 * kPage));
        CHECK(!world.is_mapped(end - 4 * kPage - 1));
    }
}

TEST_CASE("no two tensors share a page") {
    Guarded world;
    const Address first = world.allocate(16);
    const Address second = world.allocate(16);
    CHECK(world.driver.mapping_at(first)->handle != world.driver.mapping_at(second)->handle);
    CHECK(world.reserved_bytes() == 2 * kPage);
    world.check_audit();
    world.check_nothing_left();
}

TEST_CASE("a freed tensor is unmapped when its stream is done with it") {
    Guarded world;
    const Stream stream = stream_at(1);
    const Address address = world.allocate(kPage, stream);
    REQUIRE(world.free(address).ok());
    CHECK(world.is_mapped(address));  // kernels that use it may still run
    world.driver.drain_all();
    static_cast<void>(world.allocate(16, stream));
    CHECK(!world.is_mapped(address));
    CHECK(world.entry(address).state == LedgerEntry::State::Quarantined);
    CHECK(world.mismatch_count == 0);
    world.check_nothing_left();
}

TEST_CASE("strict: it is unmapped before the free returns") {
    Guarded world("isolation:strict");
    const Stream stream = stream_at(1);
    const Address address = world.allocate(kPage, stream);
    REQUIRE(world.free(address).ok());
    CHECK(!world.is_mapped(address));
    CHECK(world.check_count == 1);  // what was queued before has run
    CHECK(world.mismatch_count == 0);
    world.check_nothing_left();
}

TEST_CASE("strict: other streams are waited for if they were recorded") {
    Guarded world("isolation:strict");
    const Address address = world.allocate(kPage, stream_at(1));
    world.driver.drain(stream_at(1));  // which the other one waits for
    REQUIRE(world.record(address, stream_at(2)).ok());
    REQUIRE(world.free(address).ok());
    CHECK(world.is_mapped(address));
    world.driver.drain(stream_at(2));
    static_cast<void>(world.allocate(16, stream_at(1)));
    CHECK(!world.is_mapped(address));
    CHECK(world.mismatch_count == 0);
}

TEST_CASE("fresh memory holds the pattern, also what another tensor had") {
    Guarded world("isolation:strict");
    for (int round = 0; round < 3; ++round) {
        const Result<Address> address = world.allocator->allocate(0, kPage, nullptr);
        REQUIRE(address);
        world.driver.drain_all();
        const auto* words = reinterpret_cast<const std::uint32_t*>(*address);
        for (Bytes i = 0; i < kPage / 4; ++i) { REQUIRE(words[i] == kPattern); }
        std::memset(reinterpret_cast<void*>(*address), round, kPage);
        REQUIRE(world.allocator->free(*address).ok());
    }
}

TEST_CASE("a write into the gap is found at the free") {
    Guarded world("isolation:strict");
    const Address address = world.allocate(1000);
    Violation::Kind kind = Violation::Kind::Overrun;
    Address bad = 0;
    SUBCASE("behind it") { bad = address + 1000; }
    SUBCASE("far behind it") { bad = address + 1023; }
    SUBCASE("in front of it") {
        bad = address - 1;
        kind = Violation::Kind::Underrun;
    }
    world.poke(bad);
    REQUIRE(world.violations().empty());
    REQUIRE(world.free(address).ok());
    const std::vector<Violation> found = world.violations();
    REQUIRE(found.size() == 1);
    CHECK(found[0].kind == kind);
    CHECK(found[0].first_bad == bad);
    CHECK(found[0].bad_bytes == 1);
    CHECK(found[0].found[0] == 0x5A);
    CHECK(found[0].tensor.address == address);
    CHECK(found[0].tensor.requested_bytes == 1000);
    CHECK(violation_text(found[0]).find("1000 bytes") != std::string::npos);
}

TEST_CASE("live tensors are checked on demand") {
    Guarded world;
    const Address address = world.allocate(1000, stream_at(1));
    REQUIRE(world.allocator->check_isolation(0));
    CHECK(world.violations().empty());
    world.poke(address + 1001, stream_at(1));
    const Result<std::int64_t> checked = world.allocator->check_isolation(0);
    REQUIRE(checked);
    CHECK(*checked == 1);
    CHECK(world.violations().size() == 1);
    REQUIRE(world.free(address).ok());
    world.driver.drain_all();
    static_cast<void>(world.allocate(16, stream_at(1)));
    CHECK(world.violations().size() == 1);  // the same one
}

TEST_CASE("raise: the next allocation fails with what was found") {
    Guarded world("isolation:strict,on_violation:raise");
    const Address address = world.allocate(1000);
    world.poke(address + 1000);
    REQUIRE(world.free(address).ok());
    CHECK(world.allocate(16) == 0);
    CHECK(world.last.message().find("overrun") != std::string::npos);
    CHECK(world.allocate(16) != 0);
}

TEST_CASE("a double free names both") {
    Guarded world("isolation:strict");
    const Address address = world.allocate(1000);
    REQUIRE(world.free(address).ok());
    const Status again = world.allocator->free(address);
    CHECK(!again.ok());
    CHECK(again.message().find("double free") != std::string::npos);
    CHECK(again.message().find("allocation 1,") != std::string::npos);
    CHECK(world.violations().size() == 1);
    CHECK(!world.allocator->free(address + 16).ok());
}

TEST_CASE("addresses come back when the quarantine is full, oldest first") {
    Guarded world("isolation:strict,quarantine_gb:0");
    const Address first = world.allocate(kPage);
    REQUIRE(world.free(first).ok());
    CHECK(world.allocator->isolation_report(0).quarantined_address_bytes == 0);
    Guarded lasting("isolation:strict");
    std::set<Address> seen;
    for (int i = 0; i < 100; ++i) {
        const Address address = lasting.allocate(kPage);
        CHECK(seen.insert(address).second);
        REQUIRE(lasting.free(address).ok());
    }
    CHECK(lasting.allocator->isolation_report(0).quarantined_address_bytes == 300 * kPage);
}

TEST_CASE("memory that waits makes room when it is needed") {
    Guarded world("isolation:tensor", 1_MiB);
    const Address first = world.allocate(768_KiB, stream_at(1));
    REQUIRE(world.free(first).ok());
    CHECK(world.allocate(512_KiB, stream_at(1)) != 0);
    CHECK(world.reserved_bytes() <= 1_MiB);
    CHECK(world.mismatch_count == 0);
    world.check_audit();
}

TEST_CASE("a limit bounds what is held, pages and all") {
    Guarded world("isolation:tensor,limit_mb:1");
    std::vector<Address> tensors;
    while (const Address address = world.allocate(16)) { tensors.push_back(address); }
    CHECK(tensors.size() == 1_MiB / kPage);
    CHECK(world.last.code() == Code::OutOfMemory);
    CHECK(world.reserved_bytes() == 1_MiB);
}

TEST_CASE("nothing of it can be exported") {
    Guarded world;
    const Address address = world.allocate(kPage);
    CHECK(world.allocator->export_block(address).status().code() == Code::NotSupported);
    const auto mapping = world.driver.mapping_at(address);
    CHECK(!world.driver.export_handle(0, mapping->handle));
}

TEST_CASE("a region is isolated inside a program that is not") {
    Guarded world("strategy:paged");
    const Address outside = world.allocate(16);
    REQUIRE(world.allocator->begin_region(Isolation::Strict, false).ok());
    const Address inside = world.allocate(1000);
    const Address large = world.allocate(3 * kPage);
    CHECK(!world.is_mapped(inside + 1024));
    REQUIRE(world.allocator->end_region(false).ok());
    const Address after = world.allocate(16);
    CHECK(world.driver.mapping_at(outside)->handle == world.driver.mapping_at(after)->handle);
    CHECK(world.allocator->end_region(false).code() == Code::InvalidValue);
    REQUIRE(world.free(inside).ok());
    CHECK(!world.is_mapped(inside));
    REQUIRE(world.free(large).ok());
    world.check_audit();
    world.check_nothing_left();
}

TEST_CASE("without virtual memory management it refuses to start") {
    HostDriverConfig config;
    config.mapping_supported = false;
    HostDriver driver(config);
    const auto made = Allocator::create(driver, options_from("isolation:tensor"));
    CHECK(made.status().code() == Code::NotSupported);
}

TEST_CASE("a graph's memory stays while its pool lives") {
    Guarded world;
    const PoolId pool{0, 9};
    const Stream stream = stream_at(1);
    REQUIRE(world.allocator->begin_pool(0, pool, [](Stream) { return true; }).ok());
    world.driver.set_capturing(stream, true);
    const Address inside = world.allocate(kPage, stream);
    REQUIRE(inside != 0);
    REQUIRE(world.free(inside).ok());
    CHECK(world.allocate(kPage, stream) == inside);  // in its pool it is used again
    REQUIRE(world.free(inside).ok());
    world.driver.set_capturing(stream, false);
    REQUIRE(world.allocator->end_pool(0, pool).ok());
    world.driver.drain_all();
    CHECK(world.is_mapped(inside));
    REQUIRE(world.allocator->release_pool(0, pool).ok());
    CHECK(!world.is_mapped(inside));
    CHECK(world.driver.capture_violations() == 0);
    CHECK(world.mismatch_count == 0);
    world.check_nothing_left();
}

}  // namespace gma
