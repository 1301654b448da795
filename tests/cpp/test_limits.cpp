// Limits at their edges: lowered below what is live, none at all, less than a page; and memory that
// was given back, asked for again.
#include "pattern_world.h"

namespace gma {
namespace {

const Stream kOne = stream_at(1);
const Stream kTwo = stream_at(2);

// Uses so much in blocks of 2 MiB and gives it all back; how many handles that took.
std::uint64_t handles_to_use(PatternWorld& world, Bytes bytes) {
    const std::uint64_t before = world.driver.totals().count(Call::Create);
    for (Bytes used = 0; used < bytes; used += 2_MiB) { REQUIRE(world.allocate(2_MiB) != 0); }
    const std::uint64_t created = world.driver.totals().count(Call::Create) - before;
    world.free_all();
    world.driver.drain_all();
    REQUIRE(static_cast<bool>(world.allocator->trim(0)));
    REQUIRE(static_cast<bool>(world.allocator->trim(0)));  // callers often do
    CHECK(world.reserved_bytes() == 0);
    return created;
}

}  // namespace

TEST_CASE("what is freed above a lowered limit goes back as soon as its work is done") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(64_MiB));
    std::vector<Address> held;
    for (int i = 0; i < 8; ++i) { held.push_back(world.allocate(4_MiB, kOne)); }
    const Address last = world.allocate(1_MiB, kTwo);
    REQUIRE(world.allocator->set_limit(0, 8_MiB).ok());
    CHECK(world.reserved_bytes() >= 33_MiB);
    CHECK(world.allocate(1_MiB, kOne) == 0);
    for (const Address address : held) { REQUIRE(world.free(address).ok()); }
    CHECK(world.reserved_bytes() >= 32_MiB);  // in use by queued work, which nobody waits for
    CHECK(world.driver.queued_operations(kOne) > 0);
    world.driver.drain_all();
    REQUIRE(world.free(last).ok());
    CHECK(world.reserved_bytes() <= 8_MiB);
    CHECK(world.statistics().num_sync_all_streams == 0);
    world.check_nothing_left();
}

TEST_CASE("a limit below a page leaves nothing to allocate, and no harm done") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(32_MiB));
    for (const Bytes limit : {0_B, 1000_B, PatternWorld::kPage - 1}) {
        CAPTURE(limit);
        REQUIRE(world.allocator->set_limit(0, limit).ok());
        for (const Bytes bytes : {512_B, 1_MiB}) {
            CHECK(world.allocate(bytes) == 0);
            CHECK(world.last.code() == Code::OutOfMemory);
        }
        CHECK(world.reserved_bytes() == 0);
    }
    REQUIRE(world.allocator->set_limit(0, PatternWorld::kPage).ok());
    CHECK(world.allocate(512) != 0);
    world.check_nothing_left();
}

// As a server does that sleeps: it wakes to what it was, and handles are what a call costs.
TEST_CASE("what was given back comes back in handles as large as before") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(1_GiB));
    std::vector<std::uint64_t> created;
    for (int round = 0; round < 3; ++round) { created.push_back(handles_to_use(world, 128_MiB)); }
    CHECK(4 * created[1] < 3 * created[0]);
    CHECK(created[2] == created[1]);
    static_cast<void>(handles_to_use(world, 16_MiB));  // another program takes its turn
    CHECK(handles_to_use(world, 128_MiB) == created[1]);
    world.check_nothing_left();
}

// A program that once loaded much and now lives on little: what one survivor can hold is little.
TEST_CASE("a peak of long ago makes no large handles") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(1_GiB));
    PatternWorld fresh("strategy:paged", PatternWorld::small_card(1_GiB));
    static_cast<void>(handles_to_use(world, 512_MiB));
    std::uint64_t created = 0;
    for (int round = 0; round < 8; ++round) { created = handles_to_use(world, 16_MiB); }
    static_cast<void>(handles_to_use(fresh, 16_MiB));
    CHECK(created == handles_to_use(fresh, 16_MiB));
    world.check_nothing_left();
}

// Where a limit is tight, handles are small, whatever is expected.
TEST_CASE("what was given back comes back in handles as large as before, also under a limit") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(1_GiB));
    REQUIRE(world.allocator->set_limit(0, 256_MiB).ok());
    const std::uint64_t created = handles_to_use(world, 160_MiB);
    CHECK(handles_to_use(world, 160_MiB) <= created);
    world.check_nothing_left();
}

// What lies below it is this process's to have. Without one as little is held as can be.
TEST_CASE("in the upper half of a limit memory moves once a fifth more is held") {
    for (const bool limited : {false, true}) {
        CAPTURE(limited);
        PatternWorld world("strategy:paged", PatternWorld::small_card(1_GiB));
        if (limited) { REQUIRE(world.allocator->set_limit(0, 64_MiB).ok()); }
        std::vector<Address> blocks;
        for (int i = 0; i < 24; ++i) { blocks.push_back(world.allocate(2_MiB)); }
        for (int i = 0; i < 24; i += 2) { REQUIRE(world.free(blocks[i]).ok()); }
        world.driver.drain_all();
        const auto moves = [&world] {
            return world.driver.totals().count(Call::Map) -
                   world.driver.totals().count(Call::Create);
        };
        for (int i = 0; i < 2; ++i) { REQUIRE(world.allocate(4_MiB) != 0); }
        CHECK((moves() == 0) == limited);
        CHECK((world.reserved_bytes() == 56_MiB) == limited);
        for (int i = 0; i < 7; ++i) { REQUIRE(world.allocate(4_MiB) != 0); }  // 60 MiB are live
        CHECK(moves() > 0);
        CHECK(world.reserved_bytes() <= 64_MiB);
        world.check_nothing_left();
    }
}

// What others leave of a card is as good a limit as one that is set.
TEST_CASE("handles are small on what others leave of the card") {
    PatternWorld limited("strategy:paged", PatternWorld::small_card(1_GiB));
    PatternWorld beside("strategy:paged", PatternWorld::small_card(1_GiB));
    PatternWorld alone("strategy:paged", PatternWorld::small_card(1_GiB));
    REQUIRE(limited.allocator->set_limit(0, 256_MiB).ok());
    const Result<Address> others = beside.driver.malloc(0, 768_MiB);
    REQUIRE(static_cast<bool>(others));
    const std::uint64_t created = handles_to_use(beside, 200_MiB);
    const std::uint64_t large_ones = handles_to_use(alone, 200_MiB);
    CHECK(created == handles_to_use(limited, 200_MiB));
    CHECK(2 * created > 3 * large_ones);
    REQUIRE(beside.driver.free(0, *others).ok());
    CHECK(handles_to_use(beside, 200_MiB) <= large_ones);
}

// Kernels are loaded when they are first used: with nothing left for them, libraries fail.
TEST_CASE("the last of a card is spared until nothing else helps, and asked for again") {
    PatternWorld world("strategy:paged,slack_percent:10", PatternWorld::small_card(256_MiB));
    constexpr Bytes kLeft = 64_MiB;
    const Result<Address> others = world.driver.malloc(0, 256_MiB - kLeft);
    REQUIRE(static_cast<bool>(others));
    std::vector<Address> made;
    for (Bytes used = 0; used + 4_MiB < kLeft; used += 2_MiB) {
        made.push_back(world.allocate(2_MiB));
        REQUIRE(made.back() != 0);
    }
    for (std::size_t i = 0; i < 8; i += 2) { REQUIRE(world.free(made[i]).ok()); }
    world.driver.drain_all();
    REQUIRE(world.allocate(4_MiB) != 0);                   // slack would take all there is
    CHECK(world.reserved_bytes() <= kLeft - kLeft / 256);  // but pages can move
    CHECK(world.statistics().num_alloc_retries == 0);
    const Bytes left = kLeft - static_cast<Bytes>(world.statistics().allocated_bytes[0].current);
    REQUIRE(world.allocate(left) != 0);
    CHECK(world.reserved_bytes() == kLeft);
    CHECK(world.allocate(2_MiB) == 0);
    REQUIRE(world.driver.free(0, *others).ok());
    CHECK(world.allocate(100_MiB) != 0);
    world.check_nothing_left();
}

// Where others hold the rest of the card, which the limit does not tell.
TEST_CASE("what a nearly full card has left suffices in small handles") {
    PatternWorld world("strategy:paged,chunk_divisor:8", PatternWorld::small_card(64_MiB));
    static_cast<void>(handles_to_use(world, 60_MiB));
    constexpr Bytes kLeft = 58 * PatternWorld::kPage;
    constexpr Bytes kNeeded = 52 * PatternWorld::kPage;  // one handle of 64 pages, if there were
    REQUIRE(static_cast<bool>(world.driver.malloc(0, 64_MiB - kLeft)));
    CHECK(world.allocate(kNeeded) != 0);
    CHECK(world.reserved_bytes() <= kLeft);
    CHECK(world.allocate(kLeft) == 0);
    CHECK(world.last.code() == Code::OutOfMemory);
    CHECK(world.allocate(kLeft - kNeeded) != 0);
    CHECK(world.allocator->limit(0) == 64_MiB);
}

}  // namespace gma
