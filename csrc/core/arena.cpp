#include "core/arena.h"

#include <algorithm>

#include "base/check.h"

namespace gma {

Arena::Arena(ArenaKey key, Address base, Bytes bytes, Bytes page_bytes, BlockPool& pool)
    : key_(key),
      base_(base),
      bytes_(bytes),
      page_bytes_(page_bytes),
      pool_(pool),
      first_(pool.take()),
      chunks_(bytes / page_bytes),
      starts_(bytes / kGranuleBytes) {
    first_->address = base;
    first_->bytes = bytes;
    first_->arena = this;
    first_->kind = TileKind::Hole;
    list(first_);
}

Arena::~Arena() {
    for (Block* tile = first_; tile != nullptr;) {
        Block* next = tile->next;
        pool_.give(tile);
        tile = next;
    }
}

Block* Arena::carve(Block* tile, Address at, Bytes bytes) {
    GMA_ASSERT_LE(at + bytes, tile->end(), "a carved block lies inside its tile");
    unlist(tile);
    Block* block = at > tile->address ? split(tile, at) : tile;
    if (block != tile) { list(tile); }
    if (bytes < block->bytes) { list(split(block, at + bytes)); }
    block->kind = TileKind::Used;
    ++used_count_;
    set_start(at, reinterpret_cast<std::uintptr_t>(block));
    return block;
}

void Arena::give(Block* block) {
    set_start(block->address, 0);
    // The arena's own stream was done with a Pending block when it was freed, not just now, and had
    // no part in a lent one that was never Pending.
    const bool was_pending = block->kind == TileKind::Pending;
    const bool is_own = block->borrower == nullptr;
    const std::uint64_t count = was_pending ? block->freed_at : is_own ? ++free_count : 0;
    for_each_chunk(block->address, block->end(),
                   [count](Chunk* chunk) { chunk->freed_at = std::max(chunk->freed_at, count); });
    --used_count_;
    block->requested_bytes = 0;
    block->recorded = false;
    block->borrower = nullptr;
    block->kind = TileKind::Free;
    list(merge(block));
}

void Arena::set_slab(Block* block, Slab* slab) {
    block->slab = slab;
    const std::uintptr_t tagged = slab != nullptr ? reinterpret_cast<std::uintptr_t>(slab) | 1 : 0;
    for (Address at = block->address; at < block->end(); at += kGranuleBytes) {
        set_start(at, tagged);
    }
}

void Arena::fill(Chunk* chunk) {
    Block* tile = holes_.holding(chunk->address, chunk->end());
    GMA_ASSERT_EQ(tile != nullptr, true, "a chunk is mapped into one hole");
    for (Address at = chunk->address; at < chunk->end(); at += page_bytes_) {
        chunks_[page_index(at)] = chunk;
    }
    mapped_bytes_ += chunk->bytes;
    tile = isolate(tile, chunk->address, chunk->end());
    tile->kind = TileKind::Free;
    list(merge(tile));
}

Block* Arena::vacate(Chunk* chunk, TileKind to) {
    Block* tile = idle_tile(chunk);
    GMA_ASSERT_EQ(tile != nullptr, true, "only an idle chunk is taken away");
    mapped_bytes_ -= chunk->bytes;
    tile = isolate(tile, chunk->address, chunk->end());
    for (Address at = chunk->address; at < chunk->end(); at += page_bytes_) {
        chunks_[page_index(at)] = nullptr;
    }
    tile->kind = to;
    if (to == TileKind::Hole) {
        tile = merge(tile);
        list(tile);
    }
    return tile;
}

void Arena::clear_stale(Block* tile) {
    tile->kind = TileKind::Hole;
    list(merge(tile));
}

Block* Arena::block(Address address, Bytes bytes) {
    Block* tile = holes_.holding(address, address + bytes);
    GMA_ASSERT_EQ(tile != nullptr, true, "a blocked range lies in one hole");
    tile = isolate(tile, address, address + bytes);
    tile->kind = TileKind::Stale;
    return tile;
}

Block* Arena::idle_tile(const Chunk* chunk) const {
    return roomy_.holding(chunk->address, chunk->end());
}

Block* Arena::tile_at(Address address) const {
    for (const ByAddress* index : {&holes_, &roomy_}) {
        if (Block* tile = index->holding(address, address + 1); tile != nullptr) { return tile; }
    }
    Block* tile = first_;
    while (tile->end() <= address) { tile = tile->next; }
    return tile;
}

Block* Arena::split(Block* tile, Address at) {
    Block* upper = pool_.take();
    upper->address = at;
    upper->bytes = tile->end() - at;
    upper->arena = this;
    upper->kind = tile->kind;
    upper->previous = tile;
    upper->next = tile->next;
    if (tile->next != nullptr) { tile->next->previous = upper; }
    tile->next = upper;
    tile->bytes = at - tile->address;
    return upper;
}

// Cuts a listed Free tile or Hole so that [begin, end) is a tile of its own, which is not listed.
Block* Arena::isolate(Block* tile, Address begin, Address end) {
    unlist(tile);
    if (begin > tile->address) {
        Block* upper = split(tile, begin);
        list(tile);
        tile = upper;
    }
    if (end < tile->end()) { list(split(tile, end)); }
    return tile;
}

void Arena::list(Block* tile) {
    if (tile->kind == TileKind::Free) {
        tile->split_bytes = shared_bytes(tile);
        split_bytes_ += tile->split_bytes;
        free_bytes_ += tile->bytes;
        split_count_ += tile->split_bytes > 0;
        free_.insert(tile);
        tell_neighbours(tile, true);
        change_layout();
        if (tile->bytes >= page_bytes_) { roomy_.insert(tile); }
    }
    if (tile->kind == TileKind::Hole) { holes_.insert(tile); }
}

void Arena::unlist(Block* tile) {
    if (tile->kind == TileKind::Free) {
        split_bytes_ -= tile->split_bytes;
        free_bytes_ -= tile->bytes;
        split_count_ -= tile->split_bytes > 0;
        free_.remove(tile);
        tell_neighbours(tile, false);
        change_layout();
        if (tile->bytes >= page_bytes_) { roomy_.erase(tile); }
    }
    if (tile->kind == TileKind::Hole) { holes_.erase(tile); }
}

// What of a Free tile lies on chunks that reach beyond it: those at its two ends.
Bytes Arena::shared_bytes(const Block* tile) const {
    if (tile->bytes < page_bytes_) { return tile->bytes; }
    const Chunk* first = chunk_at(tile->address);
    const Chunk* last = chunk_at(tile->end() - 1);
    Bytes bytes = 0;
    if (first->address < tile->address) {
        bytes = std::min(first->end(), tile->end()) - tile->address;
    }
    if (last->end() > tile->end() && (last != first || bytes == 0)) {
        bytes += tile->end() - last->address;
    }
    return bytes;
}

// As FreeIndex::find() would choose: the smallest tile that fits, the lowest among equals.
bool Arena::would_find(const Block* block) const {
    const Block* before = block->previous;
    const Block* after = block->next;
    if (before != nullptr && before->kind == TileKind::Free) { return false; }
    const bool joins = after != nullptr && after->kind == TileKind::Free;
    const Bytes whole_bytes = block->bytes + (joins ? after->bytes : 0);
    const Block* other = free_.smallest_other(block->bytes, joins ? after : nullptr);
    return other == nullptr || whole_bytes < other->bytes ||
           (whole_bytes == other->bytes && block->address < other->address);
}

void Arena::tell_neighbours(const Block* tile, bool is_free) {
    if (tile->previous != nullptr) { Block::set_flag(tile->previous->free_after, is_free); }
    if (tile->next != nullptr) { Block::set_flag(tile->next->free_before, is_free); }
}

// Joins an unlisted tile with listed neighbours of its kind; the result is not listed.
Block* Arena::merge(Block* tile) {
    if (tile->next != nullptr && tile->next->kind == tile->kind) {
        unlist(tile->next);
        absorb_next(tile);
    }
    if (tile->previous != nullptr && tile->previous->kind == tile->kind) {
        tile = tile->previous;
        unlist(tile);
        absorb_next(tile);
    }
    return tile;
}

void Arena::absorb_next(Block* tile) {
    Block* next = tile->next;
    tile->bytes += next->bytes;
    tile->next = next->next;
    if (next->next != nullptr) { next->next->previous = tile; }
    pool_.give(next);
}

}  // namespace gma
