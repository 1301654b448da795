// Pools whose blocks share no memory (no_split), and pools that lend theirs (use_on_oom).
#include <algorithm>

#include "pools_world.h"

namespace gma {
namespace {

bool apart(const std::set<Handle>& a, const std::set<Handle>& b) {
    return std::none_of(a.begin(), a.end(), [&b](Handle handle) { return b.contains(handle); });
}

constexpr Bytes kPage = PatternWorld::kPage;

}  // namespace

TEST_CASE("blocks of a no_split pool share no physical memory") {
    for (const char* options : {"strategy:paged", "strategy:paged,chunk_divisor:1"}) {
        CAPTURE(std::string(options));
        PoolsWorld world(64_MiB, options);
        world.retain();
        PoolsWorld::ok(world.allocator->set_pool_no_split(0, kPool));
        std::vector<std::pair<Address, Bytes>> blocks;
        for (int round = 0; round < 3; ++round) {
            for (const Bytes bytes : {700_B, 5_KiB, kPage + 1, 3 * kPage, 7 * kPage - 512, kPage}) {
                const Address address = world.allocate_in(kPool, bytes);
                REQUIRE(address != 0);
                CHECK(address % kPage == 0);
                blocks.emplace_back(address, bytes);
                world.check_audit();
            }
            // Every other one goes, so that later ones use its memory again.
            for (std::size_t i = 0; i < blocks.size(); i += 2) {
                REQUIRE(world.free(blocks[i].first).ok());
                blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
                world.check_audit();
            }
        }
        std::vector<std::set<Handle>> pieces;
        for (const auto& [address, bytes] : blocks) {
            pieces.push_back(world.handles(address, bytes));
            for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
                CHECK(apart(pieces[i], pieces.back()));
            }
        }
        world.release();
        world.check_nothing_left();
    }
}

TEST_CASE("what a no_split pool has idle is used again, whole") {
    PoolsWorld world;
    world.retain();
    PoolsWorld::ok(world.allocator->set_pool_no_split(0, kPool));
    const Address first = world.allocate_in(kPool, 4 * kPage);
    REQUIRE(world.free(first).ok());
    const Bytes reserved = world.reserved_bytes();
    CHECK(world.allocate_in(kPool, 4 * kPage - 100) == first);
    CHECK(world.reserved_bytes() == reserved);
    CHECK(world.allocate_in(kPool, kPage) >= first + 4 * kPage);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("split keeps a no_split pool's segments whole") {
    PoolsWorld world(64_MiB, "strategy:split");
    world.retain();
    PoolsWorld::ok(world.allocator->set_pool_no_split(0, kPool));
    for (const Bytes bytes : {512_B, 512_B, 3_MiB, 3_MiB}) {
        REQUIRE(world.allocate_in(kPool, bytes) != 0);
    }
    CHECK(world.driver.segments().size() == 4);
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a pool lends its free memory before others fail, on its own stream") {
    PoolsWorld world(16_MiB);
    world.retain();
    const Address inside = world.allocate_in(kPool, 12_MiB);
    REQUIRE(world.free(inside).ok());
    CHECK(world.allocate(8_MiB, kOne) == 0);  // nobody allowed it
    PoolsWorld::ok(world.allocator->set_pool_use_on_oom(0, kPool, true));
    CHECK(world.allocate(8_MiB, kTwo) == 0);  // other order
    const std::uint64_t waits = world.driver.totals().counts[static_cast<int>(Call::Synchronize)];
    const Address lent = world.allocate(8_MiB, kOne);
    CHECK(lent == inside);
    CHECK(world.driver.totals().counts[static_cast<int>(Call::Synchronize)] == waits);
    CHECK(world.allocate(3_MiB, kOne) != 0);  // the card's rest
    CHECK(world.allocate(8_MiB, kOne) == 0);
    REQUIRE(world.free(lent).ok());
    CHECK(world.allocate_in(kPool, 12_MiB) == inside);  // and it is the pool's again
    PoolsWorld::ok(world.allocator->set_pool_use_on_oom(0, kPool, false));
    world.release();
    world.check_nothing_left();
}

TEST_CASE("a pool does not lend what a graph may use") {
    PoolsWorld world(16_MiB);
    REQUIRE(world.free(world.allocate_in(kPool, 12_MiB)).ok());  // the stream is known by number
    const Address inside = world.capture(12_MiB);
    CHECK(world.held().current == 12_MiB);
    PoolsWorld::ok(world.allocator->set_pool_use_on_oom(0, kPool, true));
    CHECK(world.allocate(8_MiB, kOne) == 0);
    world.release();
    CHECK(world.allocate(14_MiB, kOne) != inside);
    world.check_nothing_left();
}

}  // namespace gma
