#include "core/placement.h"

#include <algorithm>

namespace gma {
namespace {

bool in_region(const Block* tile) {
    return tile != nullptr && (tile->kind == TileKind::Free || tile->kind == TileKind::Hole);
}

Bytes missing_in(const Block* tile, Address begin, Address end, Bytes page_bytes) {
    Bytes missing = 0;
    for (; tile != nullptr && tile->address < end; tile = tile->next) {
        if (tile->kind != TileKind::Hole || tile->end() <= begin) { continue; }
        const Address from = round_down(std::max(begin, tile->address), page_bytes);
        const Address to = round_up(std::min(end, tile->end()), page_bytes);
        missing += to - from;
    }
    return missing;
}

struct Region {
    Block* first = nullptr;
    Block* last = nullptr;
    Address begin() const { return first->address; }
    Address end() const { return last->end(); }
};

Region region_around(Block* tile) {
    Region region{tile, tile};
    while (in_region(region.first->previous)) { region.first = region.first->previous; }
    while (in_region(region.last->next)) { region.last = region.last->next; }
    return region;
}

class Search {
public:
    Search(const Arena& arena, Bytes bytes, Bytes alignment)
        : arena_(arena), bytes_(bytes), alignment_(alignment) {}

    void try_at(const Region& region, Address begin) {
        if (begin < region.begin() || begin + bytes_ > region.end()) { return; }
        const Bytes missing = missing_in(region.first, begin, begin + bytes_, arena_.page_bytes());
        if (!best_.found() || missing < best_.missing_bytes ||
            (missing == best_.missing_bytes && begin < best_.begin)) {
            best_ = {begin, bytes_, region.first, missing};
        }
    }
    void try_region(const Region& region) {
        if (region.end() - region.begin() < bytes_) { return; }
        for (Block* tile = region.first;; tile = tile->next) {
            try_at(region, round_up(tile->address, alignment_));
            if (tile->end() >= bytes_) {
                try_at(region, round_down(tile->end() - bytes_, alignment_));
            }
            if (tile == region.last) { break; }
        }
    }
    const Window& best() const { return best_; }

private:
    const Arena& arena_;
    const Bytes bytes_;
    const Bytes alignment_;
    Window best_;
};

}  // namespace

Window best_window(const Arena& arena, Bytes bytes, Bytes alignment) {
    Search search(arena, bytes, alignment);
    Address tried_to = 0;
    for (Block* hole : arena.holes()) {
        if (hole->address < tried_to) { continue; }  // same region as the hole before
        const Region region = region_around(hole);
        tried_to = region.end();
        search.try_region(region);
    }
    return search.best();
}

Window last_window(const Arena& arena, Bytes bytes, Bytes alignment) {
    if (arena.holes().empty()) { return {}; }
    const Region region = region_around(arena.holes().last());
    Block* last = region.last;
    const Address from = in_region(last->previous) ? last->previous->address : last->address;
    Search search(arena, bytes, alignment);
    search.try_at(region, round_up(from, alignment));
    return search.best();
}

Window window_at(const Arena& arena, Address at, Bytes bytes) {
    Block* tile = arena.tile_at(at);
    if (!in_region(tile)) { return {}; }
    const Region region = region_around(tile);
    Search search(arena, bytes, kUnitBytes);
    search.try_at(region, at);
    return search.best();
}

Window hole_window(const Arena& arena, Bytes bytes) {
    for (Block* hole : arena.holes()) {
        if (hole->bytes >= bytes) { return {hole->address, bytes, hole, bytes}; }
    }
    return {};
}

std::vector<MissingRun> missing_runs(const Arena& arena, const Window& window) {
    std::vector<MissingRun> runs;
    // By address: tiles may have joined since the window was found.
    for (auto it = arena.holes().from(window.begin); it != arena.holes().end(); ++it) {
        const Block* tile = *it;
        if (tile->address >= window.end()) { break; }
        const Address begin = round_down(std::max(window.begin, tile->address), arena.page_bytes());
        const Address end = round_up(std::min(window.end(), tile->end()), arena.page_bytes());
        runs.push_back({begin, end - begin, begin - tile->address, tile->end() - end});
    }
    return runs;
}

}  // namespace gma
