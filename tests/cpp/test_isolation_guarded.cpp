// isolation tensor and strict: memory and addresses of its own for each block, between guards.
#include <set>
#include <thread>

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
    world.driver.launch(stream_at(3), [] {});  // no business of this tensor
    REQUIRE(world.free(address).ok());
    CHECK(!world.is_mapped(address));
    CHECK(world.check_count == 2);
    CHECK(world.mismatch_count == 0);
    CHECK(world.driver.queued_operations(stream_at(3)) == 1);
    world.check_audit();
}

TEST_CASE("a write between the free and the unmap is found when the memory is used again") {
    for (const char* poison : {"on", "off"}) {
        Guarded world("isolation:tensor,poison:" + std::string(poison));
        const Stream stream = stream_at(1);
        const Address first = world.allocate(3 * kPage, stream);
        REQUIRE(world.free(first).ok());
        world.poke(first + kPage + 7, stream);  // the pages are still mapped: no fault
        world.driver.drain_all();
        REQUIRE(world.violations().empty());
        const std::uint64_t before = world.driver.totals().count(Call::Check);
        const Address next =
            world.allocate(3 * kPage, stream);  // unmaps first, and uses its memory
        CHECK(world.driver.totals().count(Call::Check) == before + 1);
        CHECK(next != first);
        REQUIRE(world.allocator->check_isolation(0));
        const std::vector<Violation> found = world.violations();
        REQUIRE(found.size() == 1);
        CHECK(found[0].kind == Violation::Kind::WriteAfterFree);
        CHECK(found[0].tensor.address == first);
        CHECK(found[0].tensor.allocation_number == 1);
        CHECK(found[0].first_bad == first + kPage + 7);
        CHECK(found[0].bad_bytes == 1);
        CHECK(found[0].found[0] == 0x5A);
        world.check_audit();
        world.check_nothing_left();
    }
}

TEST_CASE("the next tensor is not blamed for what its memory held before") {
    Guarded world;
    const Stream stream = stream_at(1);
    const Address first = world.allocate(kPage, stream);
    REQUIRE(world.free(first).ok());
    world.poke(first + 8, stream);  // in the gap of the next one
    world.driver.drain_all();
    const Address next = world.allocate(1000, stream);
    SUBCASE("at its free") { REQUIRE(world.free(next).ok()); }
    SUBCASE("on demand") {}
    REQUIRE(world.allocator->check_isolation(0));
    REQUIRE(world.violations().size() == 1);
    CHECK(world.violations()[0].kind == Violation::Kind::WriteAfterFree);
    world.check_nothing_left();
}

TEST_CASE("fresh memory costs one launch at most") {
    Guarded world;
    const auto launches = [&] {
        return world.driver.totals().count(Call::Check) + world.driver.totals().count(Call::Fill);
    };
    for (int round = 0; round < 4; ++round) {
        const std::uint64_t before = launches();
        const Address address = world.allocate(1000, stream_at(1));
        CHECK(launches() - before == 1);
        REQUIRE(world.free(address).ok());
        world.driver.drain_all();
    }
    world.check_nothing_left();
}

TEST_CASE("a window is one handle, of whatever size there was room for") {
    Guarded world("isolation:tensor,poison:off,scrub:off", 1_GiB);
    const Stream stream = stream_at(1);
    for (const Bytes pages : {5, 11, 5, 700, 11, 1400, 700}) {
        REQUIRE(world.free(world.allocate(pages * kPage, stream)).ok());
        world.driver.drain_all();
    }
    CHECK(world.driver.totals().count(Call::Map) == 7);
    CHECK(world.driver.totals().count(Call::Create) == 4);
    world.check_nothing_left();
}

TEST_CASE("small handles make room for one of another size, large ones are used in pieces") {
    Guarded world("isolation:tensor,poison:off,scrub:off", 2_GiB);
    const Stream stream = stream_at(1);
    const auto count = [&](Call call) { return world.driver.totals().count(call); };
    const auto round = [&](std::vector<Bytes> sizes) {
        std::vector<Address> all;
        for (const Bytes bytes : sizes) { all.push_back(world.allocate(bytes, stream)); }
        return all;
    };
    const auto free_all = [&](const std::vector<Address>& all) {
        for (const Address address : all) { REQUIRE(world.free(address).ok()); }
        world.driver.drain_all();
    };
    free_all(round({100_MiB, 100_MiB, 100_MiB, 300_MiB}));  // in use, and kept for now: 600
    std::uint64_t mapped = count(Call::Map);
    free_all(round({110_MiB, 120_MiB}));  // the second one is beyond 728
    CHECK(count(Call::Map) == mapped + 2);
    CHECK(count(Call::Release) == 2);
    CHECK(world.reserved_bytes() == 630_MiB);

    mapped = count(Call::Map);
    const Address whole = round({600_MiB}).front();  // of 300, 120, 110 and a new one of 70
    CHECK(count(Call::Map) == mapped + 4);
    CHECK(world.reserved_bytes() <= 728_MiB);
    CHECK(world.is_mapped(whole));
    CHECK(world.is_mapped(whole + 600_MiB - 1));
    world.check_audit();

    SUBCASE("one of which the driver keeps mapped") {
        world.driver.fail_kind(Call::Unmap, 1, {}, 2);
        free_all({whole});
        static_cast<void>(world.allocate(16, stream));
        world.check_audit();
        CHECK(world.is_mapped(whole + 300_MiB));
        CHECK(world.reserved_bytes() == world.driver.held_bytes(0));
        world.driver.clear_faults();
    }
    world.check_nothing_left();
}

TEST_CASE("pages that the driver will not unmap are tried again") {
    for (const char* level : {"isolation:tensor", "isolation:strict"}) {
        Guarded world(level);
        const Address address = world.allocate(5 * kPage, stream_at(1));
        world.driver.fail_kind(Call::Unmap, 1, {}, 4);
        REQUIRE(world.free(address).ok());
        world.driver.drain_all();
        static_cast<void>(world.allocate(16, stream_at(1)));
        world.check_audit();
        CHECK(world.is_mapped(address));
        CHECK(world.reserved_bytes() == world.driver.held_bytes(0));
        world.driver.clear_faults();
        world.check_nothing_left();
    }
}

TEST_CASE("a limit that is lowered is kept when what waits is done") {
    Guarded world("isolation:tensor", 16_MiB);
    const Address first = world.allocate(4_MiB, stream_at(1));
    REQUIRE(world.allocator->set_limit(0, 2_MiB).ok());
    REQUIRE(world.free(first).ok());
    world.driver.drain_all();
    CHECK(world.allocate(16, stream_at(1)) != 0);
    CHECK(world.reserved_bytes() <= 2_MiB);
    world.check_nothing_left();
}

TEST_CASE("what was reserved is there for the next tensors") {
    Guarded world("isolation:tensor", 1_GiB);
    REQUIRE(world.allocator->reserve(0, 400_MiB, stream_at(1)).ok());
    world.driver.drain_all();
    const std::uint64_t before = world.driver.totals().count(Call::Create);
    CHECK(world.allocate(400_MiB, stream_at(1)) != 0);
    CHECK(world.driver.totals().count(Call::Create) == before);
    CHECK(world.reserved_bytes() == 400_MiB);
    world.check_nothing_left();
}

TEST_CASE("out of memory says where it went") {
    Guarded world("isolation:tensor,limit_mb:1");
    while (world.allocate(16) != 0) {}
    CHECK(world.last.message().find("pages of its own, 64.00 KiB at least") != std::string::npos);
}

TEST_CASE("reports show the gaps as PyTorch counts them") {
    Guarded world;
    static_cast<void>(world.allocate(1000));   // a gap in front and one behind... of 24 bytes
    static_cast<void>(world.allocate(kPage));  // none
    const Address gone = world.allocate(3 * kPage - 5);  // one of 512 bytes is part of its block
    REQUIRE(world.free(gone).ok());
    const DeviceStatistics now = world.statistics();
    Bytes split = 0;
    std::int64_t count = 0;
    for (const SegmentInfo& segment : world.allocator->snapshot(0)) {
        if (segment.blocks.size() == 1) { continue; }
        for (const BlockInfo& block : segment.blocks) {
            if (block.state == BlockState::Free) { split += block.bytes, ++count; }
        }
    }
    CHECK(split == kPage - 1024);
    CHECK(now.inactive_split_bytes[0].current == static_cast<std::int64_t>(split));
    CHECK(now.inactive_split[0].current == count);
    CHECK(now.active_bytes[0].current == static_cast<std::int64_t>(kPage + 1024));
    CHECK(now.allocated_bytes[0].current == static_cast<std::int64_t>(kPage + 1024));
    world.check_nothing_left();
}

TEST_CASE("history is told of the pages, as snapshots show them") {
    struct Sink : EventSink {
        std::vector<TraceRecord> records;
        void note(const TraceRecord& record) noexcept override { records.push_back(record); }
    } sink;
    Guarded world("isolation:strict");
    world.allocator->set_event_sink(&sink);
    const Address address = world.allocate(1000);
    const SegmentInfo segment = world.allocator->snapshot(0).at(0);
    REQUIRE(world.free(address).ok());
    REQUIRE(sink.records.size() == 2);
    CHECK(sink.records[0].action == Action::SegmentAlloc);
    CHECK(sink.records[1].action == Action::SegmentFree);
    for (const TraceRecord& record : sink.records) {
        CHECK(record.address == segment.address);
        CHECK(record.bytes == segment.bytes);
    }
    world.allocator->set_event_sink(nullptr);
}

TEST_CASE("a free of what was never ours is a violation too") {
    Guarded world;
    static_cast<void>(world.allocate(16));
    CHECK(!world.allocator->free(Address{1} << 40).ok());
    REQUIRE(world.violations().size() == 1);
    CHECK(world.violations()[0].kind == Violation::Kind::ForeignPointer);
}

TEST_CASE("a region ends with its thread") {
    Guarded world("strategy:paged");
    std::thread([&] {
        REQUIRE(world.allocator->begin_region(Isolation::Strict, false).ok());
        CHECK(world.allocator->end_region(true).code() == Code::InvalidValue);
        CHECK(!world.allocator->ledger(0).size());
        const Result<Address> inside = world.allocator->allocate(0, 16, nullptr);
        CHECK(world.allocator->ledger(0).size() == 1);
        REQUIRE(world.allocator->free(*inside).ok());
    }).join();
    CHECK(world.allocator->end_region(false).code() == Code::InvalidValue);  // not this thread's
    for (int i = 0; i < 4; ++i) {  // one of them may get the thread id again
        std::thread([&] {
            const Result<Address> address = world.allocator->allocate(0, 16, nullptr);
            REQUIRE(world.allocator->free(*address).ok());
        }).join();
    }
    CHECK(world.allocator->ledger(0).size() == 1);
    world.check_nothing_left();
}

TEST_CASE("regions: inside each other, of all threads, of the main level") {
    Guarded world("isolation:packed");
    const auto level_of = [&](Address address) { return world.entry(address).level; };
    REQUIRE(world.allocator->begin_region(Isolation::Tensor, true).ok());
    Address other = 0;
    std::thread([&] { other = *world.allocator->allocate(0, 16, nullptr); }).join();
    CHECK(level_of(other) == Isolation::Tensor);
    REQUIRE(world.allocator->begin_region(Isolation::Strict, false).ok());
    const Address strict = world.allocate(16);
    CHECK(level_of(strict) == Isolation::Strict);
    REQUIRE(world.allocator->begin_region(Isolation::Packed, false).ok());
    const Address packed = world.allocate(16);
    CHECK(level_of(packed) == Isolation::Packed);
    world.check_audit();
    std::thread([&] {  // a region is its thread's to end
        CHECK(world.allocator->end_region(false).code() == Code::InvalidValue);
    })
        .join();
    for (const bool all : {false, false, true}) { REQUIRE(world.allocator->end_region(all).ok()); }
    CHECK(level_of(world.allocate(16)) == Isolation::Packed);
    for (const Address address : {strict, packed}) { REQUIRE(world.free(address).ok()); }
    REQUIRE(world.allocator->free(other).ok());
    world.check_nothing_left();
}

TEST_CASE("a region may be begun while a graph is captured") {
    for (const Isolation level : {Isolation::Packed, Isolation::Tensor, Isolation::Strict}) {
        Guarded world("strategy:paged");
        const PoolId pool{0, 9};
        const Stream graph = stream_at(1);
        const auto ours = [&](Stream stream) { return stream == graph; };
        REQUIRE(world.allocator->begin_pool(0, pool, ours).ok());
        world.driver.set_capturing(graph, true);
        const Address before = world.allocate(kPage, graph);
        REQUIRE(world.allocator->begin_region(level, false).ok());
        const Address inside = world.allocate(kPage, graph);  // the pool's: a graph uses it
        const Address beside = world.allocate(1000, stream_at(2));
        REQUIRE(world.free(beside).ok());
        CHECK(!world.allocator->check_isolation(0));
        REQUIRE(world.allocator->end_region(false).ok());
        REQUIRE(world.free(before).ok());
        REQUIRE(world.free(inside).ok());
        CHECK(world.is_mapped(inside));
        world.driver.set_capturing(graph, false);
        REQUIRE(world.allocator->end_pool(0, pool).ok());
        REQUIRE(world.allocator->release_pool(0, pool).ok());
        world.check_audit();
        CHECK(world.violations().empty());
        world.check_nothing_left();
    }
}

TEST_CASE("a pool's state comes back, ledger and all") {
    Guarded world;
    const PoolId pool{0, 9};
    const Stream stream = stream_at(1);
    REQUIRE(world.allocator->begin_pool(0, pool, [](Stream) { return true; }).ok());
    world.driver.set_capturing(stream, true);
    const Address kept = *world.allocator->allocate(0, 1000, stream);
    const Address gone = *world.allocator->allocate(0, 3 * kPage, stream);
    world.driver.set_capturing(stream, false);
    const auto state = world.allocator->pool_state(0, pool);
    REQUIRE(state->size() == 2);
    REQUIRE(world.allocator->free(gone).ok());
    const auto change = world.allocator->restore_pool(0, pool, *state);
    REQUIRE_MESSAGE(change, change.status().message());
    CHECK(change->allocated.size() == 2);
    CHECK(world.entry(gone).state == LedgerEntry::State::Live);
    world.check_audit();
    world.poke(gone + 3 * kPage - 1, stream);  // its own
    REQUIRE(world.allocator->end_pool(0, pool).ok());
    REQUIRE(world.allocator->check_isolation(0));
    REQUIRE(world.allocator->restore_pool(0, pool, {}));
    world.check_audit();
    REQUIRE(world.allocator->release_pool(0, pool).ok());
    CHECK(!world.allocator->free(kept).ok());
    CHECK(world.violations().size() == 1);  // that free
    world.check_nothing_left();
}

TEST_CASE("a stream that is gone before its fence was asked") {
    for (const bool reused : {false, true}) {
        Guarded world;
        const Stream stream = stream_at(1);
        const Address early = world.allocate(kPage, stream);
        const Address late = world.allocate(1000, stream);
        REQUIRE(world.free(early).ok());
        world.driver.destroy_stream(stream);
        if (reused) { world.driver.reuse_stream(stream); }
        REQUIRE(world.allocator->free(late).ok());
        world.blocks.erase(late);
        const Address other = world.allocate(kPage, stream_at(2));
        REQUIRE(world.free(other).ok());
        REQUIRE(world.allocator->check_isolation(0));
        CHECK(!world.is_mapped(early));
        CHECK(!world.is_mapped(late));
        CHECK(world.violations().empty());
        CHECK(world.driver.illegal_accesses().empty());
        world.check_nothing_left();
    }
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
