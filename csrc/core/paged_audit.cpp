// Recounting the paged strategy: the equations of arena.h and paged_strategy.h, tested as written;
// and what reports need of it.
#include <algorithm>
#include <string>

#include "core/paged_strategy.h"

namespace gma {
namespace {

Status broken(const char* must_hold, Bytes left, Bytes right) {
    return {Code::InvalidValue, std::string("audit: ") + must_hold + " must hold, but left is " +
                                    std::to_string(left) + " and right is " +
                                    std::to_string(right)};
}

bool mapped(const Block* tile) {
    return tile->kind != TileKind::Hole && tile->kind != TileKind::Stale;
}

}  // namespace

Status PagedStrategy::audit_arena(const StreamArena& owner, Bytes& mapped_bytes) const {
    const Arena& arena = owner.arena;
    Address at = arena.base();
    Address counted_to = 0;  // end of the last chunk that was counted
    std::size_t hole_count = 0;
    std::size_t free_count = 0;
    std::size_t stale_count = 0;
    const Block* previous = nullptr;
    for (const Block* tile = arena.first(); tile != nullptr; previous = tile, tile = tile->next) {
        if (tile->address != at) { return broken("blocks tile their arena", tile->address, at); }
        if (tile->previous != previous) { return broken("links agree both ways", 0, 1); }
        at = tile->end();
        const TileKind kind = tile->kind;
        if (tile->borrower != nullptr && (kind == TileKind::Free || !mapped(tile))) {
            return broken("only a block in use is lent", tile->address, 0);
        }
        if (previous != nullptr && previous->kind == kind &&
            (kind == TileKind::Free || kind == TileKind::Hole)) {
            return broken("no two neighbours are both Free or both Holes", previous->address,
                          tile->address);
        }
        hole_count += kind == TileKind::Hole;
        free_count += kind == TileKind::Free;
        stale_count += kind == TileKind::Stale;
        // The last hole has millions of pages; its start stands for it.
        const Address end = tile->next == nullptr ? tile->address + 1 : tile->end();
        for (Address page = round_down(tile->address, page_bytes_); page < end;
             page += page_bytes_) {
            const Chunk* chunk = arena.chunk_at(page);
            if (!mapped(tile)) {
                if (chunk != nullptr) { return broken("a hole has no chunk", page, 0); }
                continue;
            }
            if (chunk == nullptr) { return broken("a page under a block is mapped", page, 0); }
            if (chunk->arena != &arena || page < chunk->address || page >= chunk->end()) {
                return broken("a page's chunk is mapped there", page, chunk->address);
            }
            if (chunk->address >= counted_to) {
                counted_to = chunk->end();
                mapped_bytes += chunk->bytes;
                for (const BorrowedUse& use : chunk->borrowed_uses) {
                    const std::uint64_t now = use.borrower->arena.free_count;
                    if (!owner.has_lent || use.count > now) {
                        return broken("a borrowed use has been, and on lent memory", use.count,
                                      now);
                    }
                }
            }
        }
    }
    if (at != arena.base() + arena.bytes()) {
        return broken("sum(block.bytes) == arena bytes", at, arena.base() + arena.bytes());
    }
    if (hole_count != arena.holes().size()) {
        return broken("every hole is listed", hole_count, arena.holes().size());
    }
    if (free_count != arena.free_blocks().size()) {
        return broken("every free block is indexed", free_count, arena.free_blocks().size());
    }
    if (stale_count != owner.stale.size()) {
        return broken("every stale range waits for a fence", stale_count, owner.stale.size());
    }
    return {};
}

// What an arena counts as its blocks come and go, and the promise of a pool without splits.
Status PagedStrategy::audit_counts(const StreamArena& owner) const {
    const Arena& arena = owner.arena;
    std::int64_t split_count = 0;
    Bytes split_bytes = 0;
    Bytes free_bytes = 0;
    for (const Block* tile : arena.free_blocks()) {
        free_bytes += tile->bytes;
        Bytes idle = 0;
        arena.for_each_idle_chunk(tile, [&](const Chunk* chunk) { idle += chunk->bytes; });
        split_bytes += tile->bytes - idle;
        split_count += tile->bytes > idle;
    }
    if (free_bytes != arena.free_bytes()) {
        return broken("free bytes are counted", arena.free_bytes(), free_bytes);
    }
    if (split_bytes != arena.split_bytes()) {
        return broken("free bytes on chunks in use are counted", arena.split_bytes(), split_bytes);
    }
    if (split_count != arena.split_count()) {
        return broken("free blocks on chunks in use are counted",
                      static_cast<Bytes>(arena.split_count()), static_cast<Bytes>(split_count));
    }
    if (!owner.no_split) { return {}; }
    for (const Block* tile = arena.first(); tile != nullptr; tile = tile->next) {
        if (tile->kind != TileKind::Used && tile->kind != TileKind::Pending) { continue; }
        const Chunk* first = arena.chunk_at(tile->address);
        const Chunk* last = arena.chunk_at(tile->end() - 1);
        if (first->address != tile->address || last->end() != tile->end()) {
            return broken("a no_split pool's block is made of whole chunks", tile->address,
                          first->address);
        }
    }
    return {};
}

// Old mappings that were kept stand in holes, apart from each other.
Status PagedStrategy::audit_kept() const {
    Address kept_to = 0;
    std::size_t listed_count = 0;
    for (const auto& [address, kept] : store_.kept()) {
        const Arena* arena = addresses_.find(address);
        const Address end = address + kept.bytes;
        if (arena == nullptr || arena->holes().holding(address, end) == nullptr) {
            return broken("a kept mapping stands in a hole", address, end);
        }
        if (address < kept_to) { return broken("kept mappings do not overlap", kept_to, address); }
        kept_to = end;
    }
    for (const Chunk* chunk : store_.chunks()) { listed_count += chunk->kept.size(); }
    if (listed_count != store_.kept().size()) {
        return broken("every kept mapping is its chunk's", listed_count, store_.kept().size());
    }
    return {};
}

Status PagedStrategy::audit() const {
    Bytes mapped_bytes = 0;
    Bytes counted_bytes = 0;
    for (const auto& [key, owner] : arenas_) {
        if (Status status = audit_arena(*owner, mapped_bytes); !status.ok()) { return status; }
        counted_bytes += owner->arena.mapped_bytes();
    }
    if (mapped_bytes + store_.spare_bytes() != store_.reserved_bytes()) {
        return broken("mapped + spare == reserved", mapped_bytes + store_.spare_bytes(),
                      store_.reserved_bytes());
    }
    if (counted_bytes != mapped_bytes) {
        return broken("sum(chunk.bytes) == arena mapped bytes", counted_bytes, mapped_bytes);
    }
    for (const auto& [key, owner] : arenas_) {
        if (Status status = audit_counts(*owner); !status.ok()) { return status; }
    }
    if (used_bytes_ > store_.reserved_bytes()) {
        return broken("used <= reserved", used_bytes_, store_.reserved_bytes());
    }
    return audit_kept();
}

Bytes PagedStrategy::largest_free_bytes() const {
    Bytes largest = 0;
    for (const auto& [key, owner] : arenas_) {
        if (owner->shared()) {
            largest = std::max(largest, owner->arena.free_blocks().largest_bytes());
        }
    }
    return largest;
}

// Idle chunks move to where they are needed.
Bytes PagedStrategy::available_bytes(Bytes growth_bytes) const {
    Bytes bytes = store_.spare_bytes() + round_down(growth_bytes, page_bytes_);
    for (const auto& [key, owner] : arenas_) {
        const Arena& arena = owner->arena;
        if (owner->shared()) { bytes += arena.free_bytes() - arena.split_bytes(); }
    }
    return std::max(bytes, largest_free_bytes());
}

StrategyCounters PagedStrategy::counters() const {
    StrategyCounters counters = counters_;
    counters.segment_count = static_cast<std::int64_t>(store_.chunk_count());
    counters.device_alloc_count = store_.created_count();
    counters.device_free_count = store_.released_count();
    counters.leaked_count = store_.leaked_count();
    for (const auto& [key, owner] : arenas_) {
        counters.inactive_split_bytes += owner->arena.split_bytes();
        counters.inactive_split_count += owner->arena.split_count();
        if (!owner->shared()) { counters.private_pool_bytes += owner->arena.mapped_bytes(); }
    }
    return counters;
}

// One segment for each unbroken run of mapped tiles.
void PagedStrategy::snapshot(std::vector<SegmentInfo>& segments) const {
    for (const auto& [key, owner] : arenas_) {
        SegmentInfo* run = nullptr;
        for (const Block* tile = owner->arena.first(); tile != nullptr; tile = tile->next) {
            if (!mapped(tile)) {
                run = nullptr;
                continue;
            }
            if (run == nullptr) {
                run = &segments.emplace_back();
                run->device = device_;
                run->address = tile->address;
                run->stream = key.stream;
                run->pool = key.pool;
                run->is_expandable = true;
                run->serial = owner->arena.chunk_at(tile->address)->serial;
            }
            run->bytes += tile->bytes;
            const BlockState state = tile->kind == TileKind::Free      ? BlockState::Free
                                     : tile->kind == TileKind::Pending ? BlockState::PendingFree
                                                                       : BlockState::Allocated;
            run->blocks.push_back({tile->address, tile->bytes, tile->requested_bytes, state});
        }
    }
}

}  // namespace gma
