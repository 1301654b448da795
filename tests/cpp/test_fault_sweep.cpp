// Every driver call fails at its k-th use, for every k that a scenario reaches, alone and together
// with the next one. Each time: a Status or another way to the same end, clean books after every
// step, right contents, and nothing left behind in the driver but what it refused to take back.
#include <functional>

#include "isolated_world.h"

namespace gma {
namespace {

constexpr Bytes kCard = 24_MiB;
constexpr Bytes kPage = 512_KiB;  // few chunks, so few calls: each of them is made to fail
const Stream kOne = stream_at(1);
const Stream kTwo = stream_at(2);

// The steps of a scenario: each may fail, none may leave the books wrong.
class Steps {
public:
    // With isolation every byte is written: a card and sizes a 32nd as large.
    Steps(const std::string& options, Bytes capacity_bytes)
        : scale_(isolation_of(options_from(options)) == Isolation::Off ? 1 : 32),
          world(options, PatternWorld::small_card(capacity_bytes / scale_, kPage / scale_)) {
        world.probe_bytes = 64_KiB / scale_;
    }

    Address allocate(Bytes bytes, Stream stream = kOne) {
        return seen(world.allocate(bytes / scale_, stream));
    }
    // A driver that refuses something is no reason for a free to fail.
    void free(Address address) {
        if (address == 0) { return; }
        const Status status = world.free(address);
        CHECK_MESSAGE(status.ok(), status.message());
        world.check_audit();
    }
    void record(Address address, Stream stream) {
        if (address != 0) { note(world.record(address, stream)); }
    }
    void trim(Bytes bytes = kMaxRequestBytes) {
        note(world.allocator->trim(0, bytes / scale_).status());
    }
    void set_limit(Bytes bytes) { note(world.allocator->set_limit(0, bytes / scale_)); }
    void reserve(Bytes bytes) { note(world.allocator->reserve(0, bytes / scale_, kOne)); }
    void begin_pool(PoolId pool) {
        note(world.allocator->begin_pool(0, pool, [](Stream stream) { return stream == kOne; }));
    }
    void end_pool(PoolId pool) { note(world.allocator->end_pool(0, pool)); }
    void release_pool(PoolId pool) { note(world.allocator->release_pool(0, pool)); }
    void drain() { world.driver.drain_all(); }

private:
    const Bytes scale_;

public:
    PatternWorld world;
    int failed_count = 0;

private:
    void note(const Status& status) {
        failed_count += !status.ok();
        CHECK((status.ok() || !status.message().empty()));
        world.check_audit();
    }
    Address seen(Address address) {
        note(world.last);
        return address;
    }
};

using Scenario = std::function<void(Steps&)>;

void sizes(Steps& steps) {
    std::vector<Address> held;
    for (const Bytes bytes : {100_B, 5_KiB, 70_KiB, 1_MiB + 1, 3_MiB, 5_MiB}) {
        held.push_back(steps.allocate(bytes));
    }
    for (std::size_t i = 0; i < held.size(); i += 2) { steps.free(held[i]); }
    steps.allocate(4_MiB);
    for (std::size_t i = 1; i < held.size(); i += 2) { steps.free(held[i]); }
    steps.trim(1_MiB);
    steps.trim();
}

// Chunks move within a stream while its work is queued, and go home in the end.
void moves(Steps& steps) {
    for (int round = 0; round < 2; ++round) {
        const Address a = steps.allocate(6_MiB);
        const Address kept = steps.allocate(100_KiB);
        const Address b = steps.allocate(6_MiB);
        const Address also_kept = steps.allocate(100_KiB);
        steps.free(a);
        steps.free(b);
        const Address moved = steps.allocate(11_MiB);
        steps.drain();
        const Address more = steps.allocate(2_MiB);
        steps.free(moved);
        steps.free(kept);
        steps.free(also_kept);
        steps.free(more);
        steps.drain();
    }
    steps.allocate(1_MiB);
}

void streams(Steps& steps) {
    const Address a = steps.allocate(12_MiB, kOne);
    steps.free(a);
    const Address b = steps.allocate(20_MiB, kTwo);  // of the first one's memory, waiting for it
    steps.free(b);
    steps.drain();
    const Address c = steps.allocate(20_MiB, kOne);
    const Address small = steps.allocate(700, kTwo);
    steps.free(c);
    steps.free(small);
    steps.trim();
}

void recorded(Steps& steps) {
    const Address large = steps.allocate(3_MiB);
    const Address small = steps.allocate(600);
    const Address both = steps.allocate(18_MiB);
    steps.drain();  // the others read what was written
    for (const Address address : {large, small, both}) { steps.record(address, kTwo); }
    steps.record(both, stream_at(3));
    for (const Address address : {large, small, both}) { steps.free(address); }
    steps.allocate(20_MiB);  // the host waits for what was recorded
    steps.allocate(500);
    steps.trim();
}

void limits(Steps& steps) {
    const Address a = steps.allocate(10_MiB);
    const Address b = steps.allocate(4_MiB, kTwo);
    steps.free(a);
    steps.set_limit(8_MiB);
    steps.allocate(3_MiB);
    steps.allocate(9_MiB);  // too much
    steps.drain();
    steps.set_limit(16_MiB);
    steps.reserve(5_MiB);
    steps.free(b);
    steps.allocate(10_MiB, kTwo);
}

void pools(Steps& steps) {
    const PoolId pool{0, 5};
    const Address outside = steps.allocate(4_MiB);
    steps.drain();
    steps.record(outside, kTwo);
    steps.begin_pool(pool);
    const Address inside = steps.allocate(5_MiB);
    const Address small = steps.allocate(900);
    steps.free(outside);
    steps.free(inside);
    steps.allocate(2_MiB);
    steps.end_pool(pool);
    steps.allocate(12_MiB);
    steps.release_pool(pool);
    steps.free(small);
    steps.drain();
    steps.allocate(3_MiB, kTwo);
    steps.trim();
}

// Idle chunks too large to fit anywhere whole: released and made anew in pieces.
void broken_up(Steps& steps) {
    std::vector<Address> held;
    for (int i = 0; i < 6; ++i) { held.push_back(steps.allocate(3_MiB + 4_KiB)); }
    for (std::size_t i = 0; i < held.size(); i += 2) { steps.free(held[i]); }
    steps.drain();
    steps.allocate(9_MiB);
    steps.allocate(4_MiB, kTwo);
    for (std::size_t i = 1; i < held.size(); i += 2) { steps.free(held[i]); }
    steps.allocate(9_MiB, kTwo);
}

struct Named {
    const char* name;
    Scenario run;
};
const Named kScenarios[] = {{"sizes", sizes},        {"moves", moves},   {"streams", streams},
                            {"recorded", recorded},  {"limits", limits}, {"pools", pools},
                            {"broken up", broken_up}};

// How often each kind of call was met, over all scenarios without a fault.
using Met = std::array<std::uint64_t, kCallCount>;

void sweep(const std::string& options, const Scenario& run, std::uint64_t together, Met& met) {
    std::uint64_t call_count = 0;
    {
        Steps steps(options, kCard);
        const std::uint64_t before = steps.world.driver.fallible_calls();
        run(steps);
        call_count = steps.world.driver.fallible_calls() - before;
        const CallTotals totals = steps.world.driver.totals();
        for (std::size_t i = 0; i < met.size(); ++i) { met[i] += totals.counts[i]; }
        steps.world.check_nothing_left();
    }
    for (std::uint64_t k = 1; k <= call_count; ++k) {
        CAPTURE(k);
        CAPTURE(together);
        Steps steps(options, kCard);
        steps.world.driver.fail_call(k, {}, together);
        run(steps);
        CHECK(steps.world.driver.faults_fired() > 0);
        steps.world.driver.clear_faults();
        if (isolation_of(steps.world.allocator->options()) != Isolation::Off) {
            settle(steps.world);
            check_no_alarm(steps.world);
        }
        steps.world.check_nothing_left();
    }
}

Met sweep_all(const std::string& options) {
    Met met{};
    for (const auto& [name, run] : kScenarios) {
        CAPTURE(std::string(name));
        for (const std::uint64_t together : {1U, 2U}) { sweep(options, run, together, met); }
    }
    return met;
}

bool has_met(const Met& met, Call call) { return met[static_cast<std::size_t>(call)] > 0; }

}  // namespace

TEST_CASE("paged survives every failing call") {
    Met met = sweep_all("strategy:paged");
    for (const Call call : {Call::Create, Call::Map, Call::SetAccess, Call::Unmap, Call::Release,
                            Call::Event, Call::Wait, Call::Synchronize}) {
        CAPTURE(static_cast<int>(call));
        CHECK(has_met(met, call));
    }
}

TEST_CASE("paged with large chunks survives every failing call") {
    Met met = sweep_all("strategy:paged,chunk_divisor:4");
    CHECK(has_met(met, Call::Release));
}

TEST_CASE("paged with lending survives every failing call") {
    Met met = sweep_all("strategy:paged,cross_stream:lend");
    CHECK(has_met(met, Call::Event));
    CHECK(has_met(met, Call::Wait));
}

TEST_CASE("each level of isolation survives every failing call") {
    std::string level;
    SUBCASE("stream") { level = "stream"; }
    SUBCASE("packed") { level = "packed"; }
    SUBCASE("tensor") { level = "tensor"; }
    SUBCASE("strict") { level = "strict"; }
    Met met = sweep_all("isolation:" + level);
    CHECK(has_met(met, Call::Fill));
    CHECK(has_met(met, Call::Check) == (level != "stream"));
    for (const Call call : {Call::Create, Call::Map, Call::SetAccess, Call::Unmap, Call::Release,
                            Call::Event, Call::Synchronize}) {
        CAPTURE(static_cast<int>(call));
        CHECK(has_met(met, call));
    }
}

TEST_CASE("split survives every failing call") {
    Met met = sweep_all("strategy:split,max_split_size_mb:20,garbage_collection_threshold:0.4");
    for (const Call call : {Call::Malloc, Call::Free, Call::Event, Call::Synchronize}) {
        CAPTURE(static_cast<int>(call));
        CHECK(has_met(met, call));
    }
}

TEST_CASE("direct survives every failing call") {
    Met met = sweep_all("strategy:direct");
    for (const Call call : {Call::Malloc, Call::Free, Call::Event, Call::Synchronize}) {
        CAPTURE(static_cast<int>(call));
        CHECK(has_met(met, call));
    }
}

// Nothing is handed out where an old mapping still stands.
TEST_CASE("a range whose unmap is refused stays blocked") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(kCard));
    const Address a = world.allocate(10_MiB, kOne);
    const Address kept = world.allocate(100_KiB, kOne);
    REQUIRE(world.free(a).ok());
    world.driver.fail_kind(Call::Unmap, 1, {}, 1'000'000);
    for (int i = 0; i < 40; ++i) {
        const Bytes bytes = 256_KiB + static_cast<Bytes>(i) * 64_KiB;
        const Address address = world.allocate(bytes, i % 2 == 0 ? kOne : kTwo);
        if (address == 0) { continue; }
        for (Address at = address; at < address + bytes; at += PatternWorld::kPage) {
            const auto mapping = world.driver.mapping_at(at);
            REQUIRE(mapping.has_value());
            CHECK(mapping->is_accessible);
        }
        world.driver.drain_all();
        if (i % 3 == 0) { REQUIRE(world.free(address).ok()); }
        world.check_audit();
    }
    CHECK(world.driver.faults_fired() > 0);
    world.driver.clear_faults();
    REQUIRE(world.free(kept).ok());
    world.check_nothing_left();
}

TEST_CASE("a mapping that can be neither used nor undone stays blocked") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(kCard));
    REQUIRE(world.allocate(1_MiB, kOne) != 0);
    world.driver.fail_kind(Call::SetAccess, 1);
    world.driver.fail_kind(Call::Unmap, 1, {}, 3);
    CHECK(world.allocate(2_MiB, kOne) == 0);
    CHECK(world.last.code() == Code::DriverFailed);
    world.check_audit();
    CHECK(world.allocate(2_MiB, kOne) != 0);
    CHECK(world.allocate(8_MiB, kOne) != 0);
    world.driver.clear_faults();
    world.check_nothing_left();
}

TEST_CASE("a refused release is counted and set aside") {
    for (const char* options : {"strategy:paged", "strategy:split", "strategy:direct"}) {
        CAPTURE(std::string(options));
        PatternWorld world(options, PatternWorld::small_card(kCard));
        const Address address = world.allocate(2_MiB, kOne);
        world.driver.drain_all();
        world.driver.fail_kind(Call::Release, 1);
        world.driver.fail_kind(Call::Free, 1);
        REQUIRE(world.free(address).ok());
        static_cast<void>(world.allocator->trim(0));
        CHECK(world.driver.faults_fired() == 1);
        CHECK(world.statistics().leaked_handles == 1);
        world.driver.clear_faults();
        world.check_nothing_left();
    }
}

}  // namespace gma
