// What the no-sharing mode asks of the paged strategy. `stream`: what a chunk held is gone before
// the driver gets it back. `packed` as well: free memory of the checked pool holds kPattern, from
// the chunk's first mapping on.
#include <algorithm>

#include "core/isolation.h"
#include "core/paged_strategy.h"
#include "core/usable_stream.h"

namespace gma {

// The chunk was mapped in the arena. One that cannot be filled is not checked, and nothing is asked
// of a stream that captures. Until the stream has passed the fill the chunk is in use.
void PagedStrategy::fill_pattern(StreamArena& target, Chunk* chunk) {
    const ArenaKey& key = target.arena.key();
    if (level_ < Isolation::Packed || key.pool != checked_pool_ || chunk->patterned) { return; }
    const Result<bool> capturing = driver_.capturing(device_, key.stream);
    if (captures_ || (capturing && *capturing)) { return; }
    const auto stream = usable_stream(driver_, device_, key.stream, key.stream_id);
    if (!stream) { return; }
    chunk->patterned =
        driver_.fill(device_, stream->stream, {{chunk->address, chunk->end()}}, kPattern).ok() &&
        order_before_others(driver_, device_, *stream).ok();
    if (chunk->patterned) { chunk->freed_at = ++target.arena.free_count; }
}

// Only frees of the checked pool come with their memory refilled.
void PagedStrategy::forget_pattern(const Block* block) {
    if (level_ < Isolation::Packed || block->arena->key().pool == checked_pool_) { return; }
    block->arena->for_each_chunk(block->address, block->end(),
                                 [](Chunk* chunk) { chunk->patterned = false; });
}

std::vector<ByteRange> PagedStrategy::gaps_of(const Block* block) const {
    if (level_ < Isolation::Packed || block->arena->key().pool != checked_pool_) { return {}; }
    bool patterned = true;
    block->arena->for_each_chunk(block->address, block->end(), [&](const Chunk* chunk) {
        patterned = patterned && chunk->patterned;
    });
    if (!patterned) { return {}; }
    return {{block->address + block->requested(), block->end()}};
}

// What is free of the checked pool's patterned chunks. A part that a slab has is not Free here.
void PagedStrategy::add_patterned(std::vector<ByteRange>& ranges) const {
    if (level_ < Isolation::Packed) { return; }
    for (const auto& [key, owner] : arenas_) {
        if (key.pool != checked_pool_) { continue; }
        for (const Block* tile : owner->arena.free_blocks()) {
            owner->arena.for_each_chunk(tile->address, tile->end(), [&](const Chunk* chunk) {
                if (!chunk->patterned) { return; }
                ranges.push_back(
                    {std::max(tile->address, chunk->address), std::min(tile->end(), chunk->end())});
            });
        }
    }
}

bool PagedStrategy::needs_scrub(const Chunk* chunk) const {
    return level_ >= Isolation::PerStream && scrubs_ && !chunk->patterned;
}

// Before an idle, quiet chunk goes back to the driver, which may give it to anyone.
Status PagedStrategy::scrub(const StreamArena& owner, const Chunk* chunk) {
    if (!needs_scrub(chunk)) { return {}; }
    if (captures_) {
        return {Code::NotSupported, "memory cannot be scrubbed while a graph is captured"};
    }
    const ArenaKey& key = owner.arena.key();
    const auto stream = usable_stream(driver_, device_, key.stream, key.stream_id);
    if (!stream) { return stream.status(); }
    const ByteRange all{chunk->address, chunk->end()};
    Status status = driver_.fill(device_, stream->stream, {all}, kPattern);
    if (!status.ok()) { return status; }
    Result<Event> filled = driver_.record(device_, stream->stream);
    if (!filled) { return filled.status(); }
    status = driver_.synchronize(*filled);
    driver_.recycle(*filled);
    return status;
}

}  // namespace gma
