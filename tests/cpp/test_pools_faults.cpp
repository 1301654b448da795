// Every driver call that pools make fails at its k-th use, alone and with the next one: a Status or
// another way, clean books after each step, and nothing left behind.
#include <functional>

#include "pools_world.h"

namespace gma {
namespace {

using State = std::vector<PoolBlock>;

// A driver's segments, as a provider gives them.
struct Plain final : SegmentProvider {
    explicit Plain(Driver& used) : driver(used) {}
    Result<Address> obtain(Bytes bytes) override { return driver.malloc(0, bytes); }
    void give_back(Address address) noexcept override {
        if (!driver.free(0, address).ok()) { ++refused_count; }
    }
    Driver& driver;
    inline static int refused_count = 0;
};

struct Steps {
    explicit Steps(Bytes capacity_bytes) : world(capacity_bytes) { Plain::refused_count = 0; }

    Address allocate_in(Bytes bytes, Stream stream = kOne) {
        world.enter(kPool, stream);
        const Address address = world.allocate(bytes, stream);
        world.leave();
        world.check_audit();
        return address;
    }
    void free(Address address) {
        if (address == 0) { return; }
        PoolsWorld::ok(world.free(address));
        world.check_audit();
    }
    void trim_pool() {
        static_cast<void>(world.allocator->trim_pool(0, kPool));
        world.check_audit();
    }
    State state() { return *world.allocator->pool_state(0, kPool); }
    // All or nothing.
    void restore(const State& wanted) {
        const State before = state();
        const auto counts = world.statistics().allocated_bytes[0].current;
        const Result<PoolChange> change = world.allocator->restore_pool(0, kPool, wanted);
        world.check_audit();
        const State after = state();
        const State& expected = change ? wanted : before;
        REQUIRE(after.size() == expected.size());
        for (std::size_t i = 0; i < after.size(); ++i) {
            CHECK(after[i].address == expected[i].address);
            CHECK(after[i].bytes == expected[i].bytes);
        }
        if (!change) {
            ++refused_count;
            CHECK(world.statistics().allocated_bytes[0].current == counts);
            return;
        }
        for (const Address address : change->freed) { world.blocks.erase(address); }
        for (const PoolBlock& block : wanted) {
            world.adopt(block.address, {block.requested_bytes, kOne, 0, block.address});
        }
    }

    PoolsWorld world;
    int refused_count = 0;
};

using Scenario = std::function<void(Steps&)>;

void whole_blocks(Steps& steps) {
    steps.world.retain();
    PoolsWorld::ok(steps.world.allocator->set_pool_no_split(0, kPool));
    const Address a = steps.allocate_in(700);
    const Address b = steps.allocate_in(1_MiB);
    steps.free(a);
    steps.allocate_in(3_MiB);
    steps.free(b);
    steps.world.driver.drain_all();
    steps.trim_pool();
    steps.allocate_in(900_KiB);
    steps.world.release();
}

void lent(Steps& steps) {
    steps.world.retain();
    PoolsWorld::ok(steps.world.allocator->set_pool_use_on_oom(0, kPool, true));
    const Address a = steps.allocate_in(10_MiB);
    steps.free(a);
    steps.world.allocate(9_MiB, kOne);
    steps.world.check_audit();
    steps.world.allocate(9_MiB, kOne);
    steps.world.check_audit();
    steps.world.release();
}

void restored(Steps& steps) {
    steps.world.retain();
    const Address a = steps.allocate_in(3_MiB);
    const Address b = steps.allocate_in(2_MiB);
    const Address c = steps.allocate_in(4_MiB);
    const State all = steps.state();
    steps.world.driver.drain_all();
    for (const Address address : {a, b}) {
        if (address != 0) { static_cast<void>(steps.world.record(address, kTwo)); }
    }
    steps.free(a);
    steps.free(c);
    steps.restore(all);
    steps.restore({});
    steps.world.driver.drain_all();
    steps.trim_pool();
    steps.restore(all);
    steps.world.release();
}

void placed(Steps& steps) {
    PoolsWorld& world = steps.world;
    const Address a = world.allocate(6_MiB, kOne);
    steps.free(a);
    world.driver.drain_all();
    static_cast<void>(world.allocator->trim(0, 3_MiB));
    world.check_audit();
    if (a == 0) { return; }
    for (const Bytes offset : {1_MiB, 3_MiB}) {
        const Result<Address> got = world.allocator->allocate_at(0, 2_MiB, kOne, a + offset);
        world.check_audit();
        if (got) { world.adopt(*got, {2_MiB, kOne, 0, *got}); }
    }
}

void provided(Steps& steps) {
    steps.world.retain(kPool, std::make_shared<Plain>(steps.world.driver));
    const Address a = steps.allocate_in(12_MiB);
    steps.free(a);
    const Address b = steps.allocate_in(1_MiB);
    steps.trim_pool();
    const Address c = steps.allocate_in(11_MiB, kTwo);
    steps.free(b);
    steps.world.release();
    steps.free(c);
    steps.world.driver.drain_all();
    static_cast<void>(steps.world.allocator->trim(0));
    steps.world.check_audit();
}

// The card, and the scenario.
struct Case {
    const char* name;
    Bytes capacity_bytes;
    Scenario run;
};
const Case kCases[] = {{"whole blocks", 24_MiB, whole_blocks},
                       {"lent", 16_MiB, lent},
                       {"restored", 24_MiB, restored},
                       {"placed", 24_MiB, placed},
                       {"provided", 32_MiB, provided}};

void finish(Steps& steps) {
    PoolsWorld& world = steps.world;
    world.driver.clear_faults();
    world.free_all();
    world.driver.drain_all();
    for (int i = 0; i < 2; ++i) { static_cast<void>(world.allocator->trim(0)); }
    world.check_audit();
    const DeviceStatistics now = world.statistics();
    CHECK(now.allocation[0].current == 0);
    CHECK(now.active[0].current == 0);
    CHECK(now.reserved_bytes[0].current == 0);
    world.allocator.reset();
    CHECK(world.driver.live_handles() + world.driver.segments().size() ==
          static_cast<std::size_t>(now.leaked_handles + Plain::refused_count));
    CHECK(world.driver.mapped_ranges().empty());
    CHECK(world.driver.outstanding_events() == 0);
    CHECK(world.driver.capture_violations() == 0);
    CHECK(world.mismatch_count == 0);
}

}  // namespace

TEST_CASE("pools survive every failing call") {
    int refused_count = 0;
    for (const Case& one : kCases) {
        CAPTURE(std::string(one.name));
        std::uint64_t call_count = 0;
        {
            Steps steps(one.capacity_bytes);
            one.run(steps);
            call_count = steps.world.driver.fallible_calls();
            CHECK(steps.refused_count == 0);
            finish(steps);
        }
        for (const std::uint64_t together : {1U, 2U}) {
            for (std::uint64_t k = 1; k <= call_count; ++k) {
                CAPTURE(k);
                CAPTURE(together);
                Steps steps(one.capacity_bytes);
                steps.world.probe_bytes = 64_KiB;
                steps.world.driver.fail_call(k, {}, together);
                one.run(steps);
                refused_count += steps.refused_count;
                finish(steps);
            }
        }
    }
    CHECK(refused_count > 0);
}

}  // namespace gma
