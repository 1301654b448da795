// Blocks at places that the caller names: one (allocate_at), or all that a pool had handed out at
// an earlier time (pool_state, restore_pool), as PyTorch's graph trees need it.
#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "core/device_heap.h"

namespace gma {

Result<Address> DeviceHeap::allocate_at(Bytes bytes, Stream stream, Address at) {
    std::unique_lock lock(lock_);
    flush_for_request_locked();
    Result<Request> request = request_locked(bytes, stream);
    if (!request) { return request.status(); }
    request->at = at;
    if (!pending_.empty() && !request->capturing) { poll_locked(); }
    if (!strategy_->check_place(*request).ok()) { drain_caches_locked(); }
    if (Status status = strategy_->check_place(*request); !status.ok()) { return status; }
    return serve_large_locked(*request, lock, bytes);
}

Result<std::vector<PoolBlock>> DeviceHeap::pool_state(PoolId pool) {
    std::lock_guard guard(lock_);
    if (!pool_in_use_locked(pool)) { return Status(Code::InvalidValue, "there is no such pool"); }
    std::vector<PoolBlock> state;
    for (const Block* block : strategy_->pool_blocks(pool)) {
        if (block->kind != TileKind::Used) { continue; }
        state.push_back({block->address, block->bytes, block->requested_bytes});
    }
    return state;
}

// All that can fail comes first; a failure leaves every block as it was.
Result<PoolChange> DeviceHeap::restore_pool(PoolId pool, const std::vector<PoolBlock>& state) {
    std::lock_guard guard(lock_);
    note_change();
    Status status = check_state_locked(pool, state);
    if (status.ok()) { status = prepare_restore_locked(pool, state); }
    count_reserved_locked();
    if (!status.ok()) { return status; }

    std::unordered_map<Address, const PoolBlock*> wanted;
    for (const PoolBlock& block : state) { wanted.emplace(block.address, &block); }
    std::unordered_map<Address, Block*> kept;  // a pinned block cannot even be away for a moment
    PoolChange change;
    for (Block* block : strategy_->pool_blocks(pool)) {
        if (block->kind != TileKind::Used) { continue; }
        change.freed.push_back(block->address);
        note_freed_locked(block->address);
        count_large_locked(block, -1);
        count_active_locked(block->bytes, stat_pool(block->requested_bytes), -1);
        const auto it = wanted.find(block->address);
        if (it != wanted.end() && it->second->bytes == block->bytes) {
            kept.emplace(block->address, block);
        } else {
            strategy_->give(block);
        }
    }
    for (const PoolBlock& block : state) {
        const auto it = kept.find(block.address);
        Block* taken =
            it != kept.end() ? it->second : strategy_->take_at(pool, block.address, block.bytes);
        GMA_ASSERT_EQ(taken != nullptr, true, "what was prepared for a restored block is free");
        taken->requested_bytes = block.requested_bytes;
        count_large_locked(taken, 1);
        note_allocated_locked(taken, pool);
        change.allocated.push_back(block.address);
    }
    return change;
}

Status DeviceHeap::check_state_locked(PoolId pool, const std::vector<PoolBlock>& state) const {
    if (!pool_in_use_locked(pool)) { return {Code::InvalidValue, "there is no such pool"}; }
    Address end = 0;
    for (const PoolBlock& block : state) {
        if (block.bytes == 0 || block.bytes % kUnitBytes != 0 || block.address < end ||
            block.requested_bytes > block.bytes) {
            return {Code::InvalidValue, "the blocks of a pool's state lie apart, in address order"};
        }
        end = block.address + block.bytes;
    }
    return {};
}

// Afterwards every place of `state` has memory, on which lie only free blocks and such as a free
// ends at once. PyTorch demands that no event is left to wait for; here the host waits for it.
Status DeviceHeap::prepare_restore_locked(PoolId pool, const std::vector<PoolBlock>& state) {
    auto overlaps = [&state](const Block* block) {
        auto above = std::upper_bound(
            state.begin(), state.end(), block->address,
            [](Address address, const PoolBlock& other) { return address < other.address; });
        if (above != state.end() && above->address < block->end()) { return true; }
        return above != state.begin() &&
               std::prev(above)->address + std::prev(above)->bytes > block->address;
    };
    auto same = [&state](const Block* block) {
        return std::any_of(state.begin(), state.end(), [block](const PoolBlock& other) {
            return other.address == block->address && other.bytes == block->bytes;
        });
    };
    if (!may_capture_locked()) {
        if (Status status = finish_pending_locked(pool); !status.ok()) { return status; }
    }
    for (Block* block : strategy_->pool_blocks(pool)) {
        if (block->kind == TileKind::Pending && overlaps(block)) {
            return {Code::NotSupported, "a freed block of the pool is still exported or in use"};
        }
        if (block->pin_count > 0 && block->kind == TileKind::Used && !same(block)) {
            return {Code::NotSupported, "an exported block of the pool has to stay as it is"};
        }
    }
    for (Block* block : strategy_->pool_blocks(pool)) {
        if (block->kind != TileKind::Used || !block->recorded) { continue; }
        if (may_capture_locked()) {
            return {Code::NotSupported, "blocks of the pool wait for streams, and a capture runs"};
        }
        ++statistics_.num_sync_all_streams;
        Status status = pending_.finish_uses(block->address);
        if (!status.ok()) { return status; }
        block->recorded = false;
    }
    for (const PoolBlock& block : state) {
        Request request;
        request.bytes = block.bytes;
        request.pool = pool;
        request.at = block.address;
        request.capturing = may_capture_locked();
        Status status = fill_place_locked(request);
        if (!status.ok()) { return status; }
    }
    return {};
}

Status DeviceHeap::fill_place_locked(const Request& request) {
    Status refused(Code::OutOfMemory, "there is no memory for a block of the pool's state");
    for (int step = 0; step < kEffortCount; ++step) {
        const auto effort = static_cast<Effort>(step);
        if (request.capturing && effort == Effort::HostWait) { break; }
        if (effort == Effort::Limit) { drain_caches_locked(); }
        Result<bool> filled = strategy_->fill_place(request, effort);
        if (filled && !*filled) { continue; }
        if (filled || filled.status().code() != Code::OutOfMemory) {
            refused = filled.status();
            break;
        }
        strategy_->set_limit(std::min(limit_bytes_, strategy_->reserved_bytes()));
    }
    strategy_->set_limit(limit_bytes_);
    return refused;
}

}  // namespace gma
