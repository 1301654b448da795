// Note [Homes]: a chunk's home is where it was mapped first. When nothing is used any more, every
// chunk that moved goes back, so that the same sequence of requests finds the same memory in the
// same places and gets the same addresses, time after time. It costs at most as much as the moves
// that it undoes. A chunk without a home of its own becomes spare.
#include "core/paged_strategy.h"

namespace gma {

StreamArena* PagedStrategy::owner_of(const Arena* arena) const {
    auto it = arenas_.find(arena->key());
    return it == arenas_.end() ? nullptr : it->second.get();
}

// A range that lies in another chunk's home is nobody's home.
void PagedStrategy::set_home(StreamArena& owner, Chunk* chunk) {
    auto next = owner.homes.lower_bound(chunk->address);
    if (next != owner.homes.end() && next->first < chunk->end()) { return; }
    if (next != owner.homes.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second > chunk->address) { return; }
    }
    owner.homes.emplace(chunk->address, chunk->bytes);
    chunk->home_arena = &owner.arena;
    chunk->home = chunk->address;
}

void PagedStrategy::forget_home(Chunk* chunk) {
    if (chunk->home_arena == nullptr) { return; }
    owner_of(chunk->home_arena)->homes.erase(chunk->home);
    chunk->home_arena = nullptr;
}

// So that, by the time of the next request, the driver can tell whether all work is done.
void PagedStrategy::fence_everything() {
    if (captures_) { return; }
    for (auto& [key, owner] : arenas_) {
        const std::uint64_t now = owner->arena.free_count;
        if (owner->fences.fenced_count() >= now) { continue; }
        // A stream that captures, or does not answer, must not be asked for a fence.
        const Result<bool> capturing = driver_.capturing(device_, key.stream);
        if (capturing && !*capturing) { static_cast<void>(owner->fences.covering(now, now)); }
    }
}

// Tried once, at the first request after everything was freed. Work that still runs, or a refused
// driver call, leaves a chunk where it is: a place like any other.
void PagedStrategy::go_home() {
    go_home_due_ = false;
    if (used_bytes_ != 0) { return; }
    for (auto& [key, owner] : arenas_) {
        owner->fences.poll();
        clear_stale(*owner);
    }
    const std::vector<Chunk*> chunks = store_.chunks();
    bool all_home = true;
    for (Chunk* chunk : chunks) {
        if (chunk->arena == nullptr || chunk->at_home()) { continue; }
        StreamArena* owner = owner_of(chunk->arena);
        if (!owner->shared() || !owner->quiet(chunk) || chunk->stale_count > 0 ||
            chunk->pin_count > 0) {
            all_home = false;
            continue;
        }
        store_.leave(chunk, owner->arena, chunk->address);
        owner->arena.vacate(chunk, TileKind::Hole);
        store_.set_spare(chunk);
    }
    for (Chunk* chunk : chunks) {
        if (chunk->arena != nullptr || chunk->home_arena == nullptr) { continue; }
        StreamArena* owner = owner_of(chunk->home_arena);
        const Address home_end = chunk->home + chunk->bytes;
        if (owner->arena.holes().holding(chunk->home, home_end) == nullptr ||
            !place_chunk(*owner, chunk, chunk->home).ok()) {
            all_home = false;
        }
    }
    // What is left of the moves would make the next round choose otherwise. To a capture it also is
    // in the way.
    store_.begin_round();
    if (has_captured_ && !store_.end_kept(0, ~Address{0}).ok()) { all_home = false; }
    store_.sort_spares();
    // Of several streams a calm round leaves fences and small objects where a disturbed one does
    // not, so that the two may take turns for ever: where that begins, all rounds end as disturbed
    // ones do.
    disturbed_ = !all_home || (arenas_.size() > 1 && disturbance_count_ > kDisturbancesBorne);
}

}  // namespace gma
