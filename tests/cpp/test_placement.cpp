#include "arena_fixture.h"
#include "core/placement.h"

namespace gma {
namespace {

constexpr Bytes kPage = ArenaFixture::kPage;

Block* use(ArenaFixture& fixture, Bytes page, Bytes bytes) {
    Block* tile = fixture.arena.free_blocks().empty() ? nullptr : fixture.arena.first();
    while (tile != nullptr && tile->end() <= ArenaFixture::at(page)) { tile = tile->next; }
    REQUIRE(tile != nullptr);
    return fixture.arena.carve(tile, ArenaFixture::at(page), bytes);
}

Bytes sum(const std::vector<MissingRun>& runs) {
    Bytes bytes = 0;
    for (const MissingRun& run : runs) { bytes += run.bytes; }
    return bytes;
}

}  // namespace

TEST_CASE("an empty arena misses every page of a request") {
    const ArenaFixture fixture;
    const Window window = best_window(fixture.arena, 3 * kPage + 512, kUnitBytes);
    REQUIRE(window.found());
    CHECK(window.begin == ArenaFixture::kBase);
    CHECK(window.missing_bytes == 4 * kPage);
    const auto runs = missing_runs(fixture.arena, window);
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].begin == ArenaFixture::kBase);
    CHECK(runs[0].bytes == 4 * kPage);
    CHECK(runs[0].room_before == 0);
    CHECK(runs[0].room_after == Arena::kAlignmentBytes - 4 * kPage);
}

TEST_CASE("the window starts in mapped free memory where it can") {
    ArenaFixture fixture;
    fixture.fill(0, 2);
    use(fixture, 0, kPage / 2);  // half a page and a whole one are free before the hole
    const Window window = best_window(fixture.arena, 3 * kPage, kUnitBytes);
    REQUIRE(window.found());
    CHECK(window.begin == ArenaFixture::kBase + kPage / 2);
    CHECK(window.missing_bytes == 2 * kPage);
    CHECK(sum(missing_runs(fixture.arena, window)) == window.missing_bytes);
}

TEST_CASE("the fewest missing pages win, then the lowest address") {
    ArenaFixture fixture;
    fixture.fill(0, 2);
    use(fixture, 0, kPage);  // one free page, then a hole of 2 pages
    fixture.fill(4, 3);
    use(fixture, 4, kPage);  // two free pages, then the last hole
    const Window window = best_window(fixture.arena, 3 * kPage, kUnitBytes);
    REQUIRE(window.found());
    CHECK(window.begin == ArenaFixture::at(5));
    CHECK(window.missing_bytes == kPage);
    const Window small = best_window(fixture.arena, 2 * kPage + 512, kUnitBytes);
    CHECK(small.begin == ArenaFixture::at(5));
    const Window aligned = best_window(fixture.arena, 3 * kPage, 2 * kPage);
    CHECK(aligned.begin % (2 * kPage) == 0);
}

TEST_CASE("a hole between used blocks is filled from its free end") {
    ArenaFixture fixture;
    fixture.fill(0, 1);
    use(fixture, 0, kPage);
    fixture.fill(3, 2);
    use(fixture, 4, kPage);  // hole of two pages, one free page, a used one
    const Window window = best_window(fixture.arena, 2 * kPage, kUnitBytes);
    CHECK(window.begin == ArenaFixture::at(2));
    CHECK(window.missing_bytes == kPage);
    const auto runs = missing_runs(fixture.arena, window);
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].begin == ArenaFixture::at(2));
    CHECK(runs[0].room_before == kPage);
    CHECK(runs[0].room_after == 0);
}

TEST_CASE("stale ranges are no room") {
    ArenaFixture fixture;
    fixture.fill(0, 1);
    use(fixture, 0, kPage);
    Chunk* chunk = fixture.fill(1, 1);
    fixture.arena.vacate(chunk, TileKind::Stale);
    const Window window = best_window(fixture.arena, kPage, kUnitBytes);
    REQUIRE(window.found());
    CHECK(window.begin == ArenaFixture::at(2));
}

// Filling may join tiles around a window that was found before.
TEST_CASE("missing runs are read from the arena as it is now") {
    ArenaFixture fixture;
    fixture.fill(0, 1);
    use(fixture, 0, kPage);
    Chunk* chunk = fixture.fill(1, 1);
    Block* stale = fixture.arena.vacate(chunk, TileKind::Stale);
    const Window window = best_window(fixture.arena, 3 * kPage, kUnitBytes);
    REQUIRE(window.begin == ArenaFixture::at(2));
    fixture.arena.clear_stale(stale);  // the hole before joins the window's
    fixture.check();
    const auto runs = missing_runs(fixture.arena, window);
    REQUIRE(runs.size() == 1);
    CHECK(runs[0].begin == ArenaFixture::at(2));
    CHECK(runs[0].bytes == 3 * kPage);
    CHECK(runs[0].room_before == kPage);
}

TEST_CASE("the last window has room for any chunk") {
    ArenaFixture fixture;
    fixture.fill(0, 3);
    use(fixture, 0, kPage);
    const Window window = last_window(fixture.arena, 5 * kPage, kUnitBytes);
    REQUIRE(window.found());
    CHECK(window.begin == ArenaFixture::at(1));
    CHECK(window.missing_bytes == 3 * kPage);
    CHECK(missing_runs(fixture.arena, window).back().room_after > 1_GiB);
}

TEST_CASE("more than the arena has is not found") {
    const ArenaFixture fixture;
    CHECK_FALSE(best_window(fixture.arena, Arena::kAlignmentBytes + kPage, kUnitBytes).found());
    CHECK_FALSE(last_window(fixture.arena, Arena::kAlignmentBytes + kPage, kUnitBytes).found());
}

}  // namespace gma
