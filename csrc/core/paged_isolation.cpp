// What the no-sharing mode asks of the paged strategy. `stream`: what a chunk held is gone before
// the driver gets it back. `packed` as well: free memory of the checked pool holds kPattern, from
// the chunk's first mapping on.
#include <algorithm>

#include "core/isolation.h"
#include "core/paged_strategy.h"
#include "core/usable_stream.h"

namespace gma {

// The chunk was mapped in the arena. One that cannot be filled is not checked.
void PagedStrategy::fill_pattern(const StreamArena& target, Chunk* chunk) {
    const ArenaKey& key = target.arena.key();
    if (level_ < Isolation::Packed || key.pool != checked_pool_ || chunk->patterned) { return; }
    const Stream stream = usable_stream(driver_, device_, key.stream, key.stream_id);
    chunk->patterned =
        driver_.fill(device_, stream, {{chunk->address, chunk->end()}}, kPattern).ok();
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

// Before an idle, quiet chunk goes back to the driver, which may give it to anyone.
Status PagedStrategy::scrub(const StreamArena& owner, const Chunk* chunk) {
    if (level_ < Isolation::PerStream || !scrubs_ || chunk->patterned) { return {}; }
    if (captures_) {
        return {Code::NotSupported, "memory cannot be scrubbed while a graph is captured"};
    }
    const ArenaKey& key = owner.arena.key();
    const Stream stream = usable_stream(driver_, device_, key.stream, key.stream_id);
    Status status = driver_.fill(device_, stream, {{chunk->address, chunk->end()}}, kPattern);
    if (!status.ok()) { return status; }
    Result<Event> filled = driver_.record(device_, stream);
    if (!filled) { return filled.status(); }
    status = driver_.synchronize(*filled);
    driver_.recycle(*filled);
    return status;
}

}  // namespace gma
