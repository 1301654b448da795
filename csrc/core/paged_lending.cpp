// Note [Lending]: with cross_stream:lend a stream may get a block of another stream's arena. No
// page moves: what changes is whom the block's work is ordered by, while it is lent.
//
//   The borrower's work begins after the lender's: its fence has passed, or the borrower waits.
//   When the block is freed, each chunk under it notes how far the borrower's stream had come
//   (BorrowedUse). Whoever takes memory on that chunk next waits for it, unless it is the borrower
//   or the fence has passed. Until then the chunk is not quiet: it moves only to a stream that
//   waits for all of them, and its old addresses stay blocked until they are done (StaleRange).
//
// A lent block is free for its lender at once, so lending holds nothing back.
#include <algorithm>

#include "core/paged_strategy.h"

namespace gma {

// The smallest block that another stream's arena has at hand.
Result<Block*> PagedStrategy::borrow(StreamArena& borrower, const Request& request, Effort effort) {
    if (!request.may_borrow || cross_stream_ != CrossStream::Lend || effort < Effort::OwnIdle) {
        return nullptr;
    }
    Block* best = nullptr;
    StreamArena* lender = nullptr;
    std::uint64_t best_count = 0;
    for (auto& [key, owner] : arenas_) {
        if (owner.get() == &borrower || key.pool != PoolId{} || owner->captured) { continue; }
        Block* tile = owner->arena.free_blocks().find(request.bytes, request.alignment);
        if (tile == nullptr || (best != nullptr && best->bytes <= tile->bytes)) { continue; }
        const Address at = round_up(tile->address, request.alignment);
        std::uint64_t count = 0;
        owner->arena.for_each_chunk(at, at + request.bytes, [&](const Chunk* chunk) {
            count = std::max(count, chunk->freed_at);
        });
        if (count > owner->fences.passed_count()) { fence_and_poll(*owner); }
        if (count > owner->fences.passed_count() && effort < Effort::WaitingIdle) { continue; }
        best = tile;
        lender = owner.get();
        best_count = count;
    }
    if (best == nullptr) { return nullptr; }
    // Where no wait can be had, as for a destroyed stream, pages may still move.
    if (best_count > lender->fences.passed_count() &&
        !order_after(*lender, best_count, borrower).ok()) {
        return nullptr;
    }
    const Address at = round_up(best->address, request.alignment);
    if (!order_after_borrowers(*lender, at, request.bytes, borrower).ok()) { return nullptr; }
    lender->has_lent = true;
    Block* block = take(best, at, request.bytes);
    block->borrower = &borrower;
    return block;
}

void PagedStrategy::give_back(Block* block) {
    StreamArena* const borrower = block->borrower;
    const std::uint64_t count = ++borrower->arena.free_count;
    block->arena->for_each_chunk(block->address, block->end(), [&](Chunk* chunk) {
        auto use = std::ranges::find(chunk->borrowed_uses, borrower, &BorrowedUse::borrower);
        if (use == chunk->borrowed_uses.end()) {
            chunk->borrowed_uses.push_back({borrower, count});
        } else {
            use->count = count;
        }
    });
}

// Makes later work of the user's stream come after what borrowers did with these addresses.
Status PagedStrategy::order_after_borrowers(StreamArena& owner, Address at, Bytes bytes,
                                            StreamArena& user) {
    if (!owner.has_lent) { return {}; }
    Status status;
    owner.arena.for_each_chunk(at, at + bytes, [&](Chunk* chunk) {
        std::erase_if(chunk->borrowed_uses, [](const BorrowedUse& use) {
            return use.count <= use.borrower->fences.passed_count();
        });
        for (const BorrowedUse& use : chunk->borrowed_uses) {
            if (use.borrower == &user || !status.ok()) { continue; }
            status = order_after(*use.borrower, use.count, user);
            // A destroyed stream has no fence; the device has.
            if (!status.ok()) { status = wait_for(*use.borrower, use.count); }
        }
    });
    return status;
}

// False: other streams may still use memory that was lent, and no wait can be had now.
bool PagedStrategy::may_take(StreamArena& owner, Address at, const Request& request) {
    if (!owner.has_lent) { return true; }
    if (!request.capturing) { return order_after_borrowers(owner, at, request.bytes, owner).ok(); }
    bool returned = true;
    owner.arena.for_each_chunk(at, at + request.bytes, [&](const Chunk* chunk) {
        returned = returned && StreamArena::returned(chunk);
    });
    return returned;
}

// The host waits for all work that used the chunk.
Status PagedStrategy::wait_for_chunk(StreamArena& owner, Chunk* chunk) {
    if (Status status = wait_for(owner, chunk->freed_at); !status.ok()) { return status; }
    return wait_for_uses(chunk->borrowed_uses);
}

Status PagedStrategy::wait_for_uses(const std::vector<BorrowedUse>& uses) {
    for (const BorrowedUse& use : uses) {
        if (use.count <= use.borrower->fences.passed_count()) { continue; }
        if (Status status = wait_for(*use.borrower, use.count); !status.ok()) { return status; }
    }
    return {};
}

// Makes later work of the target's stream come after the last use of another stream's idle chunk.
// One wait serves all chunks that its fence covers, now and later.
Status PagedStrategy::order_after(StreamArena& owner, std::uint64_t count, StreamArena& target) {
    std::uint64_t& waited_count = target.waited_for[&owner];
    if (count <= waited_count) { return {}; }
    owner.fences.poll();  // to ask costs no more than to wait, and what has passed holds up nothing
    if (count <= owner.fences.passed_count()) { return {}; }
    Result<FenceLine::Fence> fence = owner.fences.covering(count, owner.arena.free_count);
    if (!fence) { return fence.status(); }
    ++counters_.stream_wait_count;
    Status status = driver_.wait(target.arena.key().stream, fence->event);
    if (status.ok()) { waited_count = fence->count; }
    return status;
}

}  // namespace gma
