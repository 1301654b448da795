// Private pools of the paged strategy, and blocks at places that a caller names.
//
// A pool's memory stays where it is until the pool is released: graphs have its addresses. trim of
// one pool is the exception, asked for by name, and leaves alone what a graph may use.
#include <algorithm>

#include "core/paged_strategy.h"

namespace gma {

void PagedStrategy::release_pool(PoolId pool) {
    no_split_pools_.erase(pool);
    for (auto& [key, owner] : arenas_) {
        if (key.pool == pool) { owner->released = true; }
    }
}

void PagedStrategy::begin_pool(PoolId pool) {
    for (auto& [key, owner] : arenas_) {
        if (key.pool == pool) { owner->released = false; }
    }
}

// An arena whose blocks share memory already goes on as it began: chunks cannot be split.
void PagedStrategy::set_no_split(PoolId pool) {
    no_split_pools_.insert(pool);
    for (auto& [key, owner] : arenas_) {
        if (key.pool == pool && owner->arena.mapped_bytes() == 0) { owner->no_split = true; }
    }
}

// The whole chunks at the start of the smallest Free block in which they suffice.
Block* PagedStrategy::take_whole(StreamArena& owner, Bytes bytes) {
    const FreeIndex& tiles = owner.arena.free_blocks();
    for (auto it = tiles.from(bytes); it != tiles.end(); ++it) {
        Address begin = 0;
        Address end = 0;
        owner.arena.for_each_idle_chunk(*it, [&](const Chunk* chunk) {
            if (chunk->pin_count > 0 || (begin != 0 && end - begin >= bytes)) { return; }
            if (begin == 0 || end != chunk->address) { begin = chunk->address; }
            end = chunk->end();
        });
        if (begin != 0 && end - begin >= bytes) { return take(*it, begin, end - begin); }
    }
    return nullptr;
}

Result<Bytes> PagedStrategy::trim_pool(PoolId pool, Wait wait) {
    Bytes given = 0;
    for (auto& [key, owner] : arenas_) {
        if (key.pool != pool || (owner->captured && !owner->shared())) { continue; }
        Result<Bytes> part = break_idle(*owner, Window{}, kMaxRequestBytes, wait);
        if (!part) { return part; }
        given += *part;
    }
    drop_unused_arenas();
    return given;
}

bool PagedStrategy::captured(PoolId pool) const {
    return std::any_of(arenas_.begin(), arenas_.end(), [&](const auto& entry) {
        return entry.first.pool == pool && entry.second->captured;
    });
}

void PagedStrategy::add_pool_bytes(std::map<PoolId, Bytes>& held) const {
    for (const auto& [key, owner] : arenas_) {
        if (key.pool != PoolId{}) { held[key.pool] += owner->arena.mapped_bytes(); }
    }
}

std::vector<Block*> PagedStrategy::pool_blocks(PoolId pool) const {
    std::vector<Block*> blocks;
    for (const auto& [key, owner] : arenas_) {
        if (key.pool != pool || owner->arena.empty()) { continue; }
        for (Block* tile = owner->arena.first(); tile != nullptr; tile = tile->next) {
            if (tile->kind == TileKind::Used || tile->kind == TileKind::Pending) {
                blocks.push_back(tile);
            }
        }
    }
    std::ranges::sort(blocks, {}, &Block::address);
    return blocks;
}

// The pool's arena that has all of [at, at + bytes), or nullptr.
Arena* PagedStrategy::arena_at(PoolId pool, Address at, Bytes bytes) const {
    Arena* arena = addresses_.find(at);
    const bool has_all = arena != nullptr && arena->key().device == device_ &&
                         arena->key().pool == pool && at % kUnitBytes == 0 && bytes > 0 &&
                         bytes <= arena->base() + arena->bytes() - at;
    return has_all ? arena : nullptr;
}

Status PagedStrategy::check_place(const Request& request) const {
    const Arena* arena = arena_at(request.pool, request.at, request.bytes);
    if (arena == nullptr || arena->key().stream != request.stream ||
        arena->key().stream_id != request.stream_id) {
        return {Code::NotSupported, "the address is not in memory of this stream and pool"};
    }
    if (owner_of(arena)->no_split) {
        return {Code::NotSupported, "the pool's blocks have memory of their own (no_split)"};
    }
    if (!window_at(*arena, request.at, request.bytes).found()) {
        return {Code::NotSupported, "another block uses memory at this address"};
    }
    return {};
}

Result<bool> PagedStrategy::fill_place(const Request& request, Effort effort) {
    const Arena* arena = arena_at(request.pool, request.at, request.bytes);
    if (arena == nullptr) { return Status(Code::InvalidValue, "the pool never had this address"); }
    StreamArena& owner = *owner_of(arena);
    Result<bool> cleared = clear_place(owner, request, effort);
    if (!cleared || !*cleared) { return cleared; }
    Window window{request.at, request.bytes, arena->first(), 0};
    for (const MissingRun& run : missing_runs(*arena, window)) {
        window.missing_bytes += run.bytes;
    }
    if (window.missing_bytes == 0) { return true; }
    if (!owner.shared() && effort < Effort::Limit && effort > Effort::Budget) { return false; }
    ask_card(request, window.missing_bytes, effort);
    return fill(owner, request, window, effort);
}

// Whether no old mapping stands in the place any more. One may from when the pool was released.
Result<bool> PagedStrategy::clear_place(StreamArena& owner, const Request& request, Effort effort) {
    auto in_place = [&](const StaleRange& stale) {
        return stale.tile->address < request.at + request.bytes && stale.tile->end() > request.at;
    };
    for (int attempt = 0; attempt < 2; ++attempt) {
        const auto it = std::find_if(owner.stale.begin(), owner.stale.end(), in_place);
        if (it == owner.stale.end()) { return true; }
        if (request.capturing) { break; }
        if (effort == Effort::HostWait) {
            if (Status status = wait_for(owner, it->count); !status.ok()) { return status; }
            if (Status status = wait_for_uses(it->borrowed_uses); !status.ok()) { return status; }
        }
        owner.fences.poll();
        clear_stale(owner);
    }
    return std::none_of(owner.stale.begin(), owner.stale.end(), in_place);
}

Block* PagedStrategy::take_at(PoolId pool, Address at, Bytes bytes) {
    const Arena* arena = arena_at(pool, at, bytes);
    if (arena == nullptr) { return nullptr; }
    Block* tile = arena->tile_at(at);
    if (tile->kind != TileKind::Free || tile->end() < at + bytes) { return nullptr; }
    StreamArena& owner = *owner_of(arena);
    if (!order_after_borrowers(owner, at, bytes, owner).ok()) { return nullptr; }
    return take(tile, at, bytes);
}

// Pools come and go, and with them arenas: a process has addresses for a few hundred.
bool PagedStrategy::unused(const StreamArena& owner) const {
    return owner.released && owner.arena.empty() && owner.arena.mapped_bytes() == 0 &&
           owner.stale.empty();
}

void PagedStrategy::drop_unused_arenas() {
    for (auto it = arenas_.begin(); it != arenas_.end();) {
        StreamArena& owner = *it->second;
        const Address base = owner.arena.base();
        const Bytes bytes = owner.arena.bytes();
        if (captures_ || !unused(owner)) {
            ++it;
            continue;
        }
        addresses_.set(base, bytes, nullptr);  // first: another device may get the range at once
        if (!store_.end_kept(base, base + bytes).ok() || !driver_.unreserve(base, bytes).ok()) {
            addresses_.set(base, bytes, &owner.arena);
            ++it;
            continue;
        }
        for (Chunk* chunk : store_.chunks()) {
            if (chunk->home_arena == &owner.arena) { chunk->home_arena = nullptr; }
        }
        for (auto& [key, other] : arenas_) { other->waited_for.erase(&owner); }
        if (recent_ == &owner) { recent_ = nullptr; }
        it = arenas_.erase(it);
    }
}

}  // namespace gma
