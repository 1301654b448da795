#include <memory>

#include "arena_fixture.h"
#include "core/thread_cache.h"

namespace gma {
namespace {

// One cache, and slabs of one class (4 KiB, 16 objects a slab) that lie in a row.
class Fixture {
public:
    static constexpr Bytes kObjectBytes = 4_KiB;
    static constexpr std::uint32_t kObjectCount = 16;

    Fixture() { arena_.fill(0, 8); }

    Slab* add_slab() {
        Block* tile = arena_.arena.first();
        while (tile->kind != TileKind::Free) { tile = tile->next; }
        Block* block = arena_.arena.carve(tile, tile->address, Slab::kBytes);
        slabs_.push_back(std::make_unique<Slab>(block, &cache, size_class(kObjectBytes)));
        cache.add(slabs_.back().get());
        return slabs_.back().get();
    }
    Address take(Bytes requested = kObjectBytes) {
        return cache.take(size_class(kObjectBytes), requested);
    }
    ThreadCache::Freed put(Slab* slab, Address address) {
        emptied = nullptr;
        return cache.put(slab, address, emptied);
    }

    std::atomic<bool> keep_none{false};
    std::atomic<bool> changed{false};
    ThreadCache cache{ArenaKey{}, keep_none, changed};
    Slab* emptied = nullptr;

private:
    ArenaFixture arena_;
    std::vector<std::unique_ptr<Slab>> slabs_;
};
using Freed = ThreadCache::Freed;

}  // namespace

TEST_CASE("objects are taken in address order, and a freed one first") {
    Fixture fixture;
    CHECK(fixture.take() == 0);
    Slab* slab = fixture.add_slab();
    for (std::uint32_t i = 0; i < Fixture::kObjectCount; ++i) {
        CHECK(fixture.take() == slab->base + i * Fixture::kObjectBytes);
    }
    CHECK(fixture.take() == 0);
    CHECK(slab->full());
    const Address third = slab->address_of(2);
    CHECK(fixture.put(slab, third) == Freed::Kept);
    CHECK(fixture.take() == third);
}

TEST_CASE("the lowest slab with room serves") {
    Fixture fixture;
    Slab* low = fixture.add_slab();
    for (std::uint32_t i = 0; i < Fixture::kObjectCount; ++i) { fixture.take(); }
    Slab* high = fixture.add_slab();
    REQUIRE(low->base < high->base);
    CHECK(fixture.take() == high->base);
    CHECK(fixture.put(low, low->address_of(5)) == Freed::Kept);
    CHECK(fixture.take() == low->address_of(5));
    CHECK(fixture.take() == high->address_of(1));
}

TEST_CASE("wrong frees are noticed") {
    Fixture fixture;
    Slab* slab = fixture.add_slab();
    const Address first = fixture.take();
    const Address second = fixture.take();
    CHECK(fixture.put(slab, first + 512) == Freed::NotAllocated);  // inside an object
    CHECK(fixture.put(slab, slab->address_of(7)) == Freed::NotAllocated);
    CHECK(fixture.put(slab, first) == Freed::Kept);
    CHECK(fixture.put(slab, first) == Freed::NotAllocated);  // twice
    CHECK(fixture.put(slab, second) == Freed::Kept);
}

TEST_CASE("one empty slab is kept, others leave") {
    Fixture fixture;
    Slab* low = fixture.add_slab();
    for (std::uint32_t i = 0; i < Fixture::kObjectCount; ++i) { fixture.take(); }
    Slab* high = fixture.add_slab();
    const Address extra = fixture.take();
    CHECK(fixture.put(high, extra) == Freed::Kept);  // it is the one that serves next
    for (std::uint32_t i = 0; i + 1 < Fixture::kObjectCount; ++i) {
        CHECK(fixture.put(low, low->address_of(i)) == Freed::Kept);
    }
    CHECK(fixture.put(low, low->address_of(Fixture::kObjectCount - 1)) == Freed::Kept);
    CHECK(fixture.cache.drain() == std::vector<Slab*>{low, high});
    CHECK(fixture.take() == 0);
}

TEST_CASE("no empty slab is kept when none shall be") {
    Fixture fixture;
    Slab* slab = fixture.add_slab();
    const Address address = fixture.take();
    fixture.keep_none = true;
    CHECK(fixture.put(slab, address) == Freed::SlabEmpty);
    CHECK(fixture.emptied == slab);
    CHECK(fixture.take() == 0);
    CHECK(fixture.cache.drain().empty());
}

TEST_CASE("a drain leaves slabs with objects in use") {
    Fixture fixture;
    Slab* slab = fixture.add_slab();
    const Address address = fixture.take();
    CHECK(fixture.cache.drain().empty());
    CHECK(fixture.put(slab, address) == Freed::Kept);
    CHECK(fixture.cache.drain() == std::vector<Slab*>{slab});
}

TEST_CASE("a recorded object goes back only when its streams are done") {
    Fixture fixture;
    Slab* slab = fixture.add_slab();
    const Address address = fixture.take(1000);
    CHECK(fixture.cache.set_recorded(slab, address + 1) == ThreadCache::Recording::NotAllocated);
    CHECK(fixture.cache.set_recorded(slab, address) == ThreadCache::Recording::Done);
    CHECK(fixture.cache.info(slab, address).recorded);
    CHECK(fixture.put(slab, address) == Freed::Recorded);
    CHECK(fixture.cache.count_recorded_free(slab, address));
    CHECK(fixture.take() != address);
    CHECK(fixture.cache.put_pending(slab, address, fixture.emptied) == Freed::Kept);
    CHECK(fixture.take() == address);
    CHECK_FALSE(fixture.cache.info(slab, address).recorded);
}

TEST_CASE("deltas sum up what happened, and are taken once") {
    Fixture fixture;
    Slab* slab = fixture.add_slab();
    const Address first = fixture.take(1000);
    fixture.take(4096);
    CHECK(fixture.cache.requested_bytes(slab, first) == 1000);
    CHECK(fixture.put(slab, first) == Freed::Kept);
    const CacheDelta delta = fixture.cache.take_delta();
    CHECK(delta.count.in == 2);
    CHECK(delta.count.out == 1);
    CHECK(delta.count.peak == 2);
    CHECK(delta.bytes.net() == 4096);
    CHECK(delta.requested_bytes.in == 5096);
    CHECK(delta.requested_bytes.net() == 4096);
    CHECK(fixture.cache.take_delta().count.in == 0);
}

TEST_CASE("a flush is due before the statistics are a MiB off") {
    Fixture fixture;
    for (int i = 0; i < 8; ++i) { fixture.add_slab(); }
    Bytes taken_bytes = 0;
    while (!fixture.cache.flush_due() && fixture.take() != 0) {
        taken_bytes += Fixture::kObjectBytes;
    }
    // Eight slabs are half a MiB: not due yet. Taking and giving back does not add up either.
    CHECK(taken_bytes == 8 * Slab::kBytes);
    CHECK_FALSE(fixture.cache.flush_due());
    CHECK(fixture.cache.take_delta().bytes.net() == static_cast<std::int64_t>(taken_bytes));
}

}  // namespace gma
