// The paged strategy's doors: arenas by stream, taking, giving back, trimming. How missing pages
// are filled is in page_filler.cpp; private pools and places that a caller names are in
// paged_pools.cpp; recounting is in paged_audit.cpp.
#include "core/paged_strategy.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace gma {

PagedStrategy::PagedStrategy(Driver& driver, int device, DeviceProperties properties,
                             const Options& options, Isolation level, PoolId checked_pool,
                             AddressMap& addresses, const Listeners& listeners)
    : driver_(driver),
      device_(device),
      page_bytes_(properties.page_bytes),
      total_bytes_(properties.total_bytes),
      slack_(options.slack_percent / 100.0),
      stream_slack_bytes_(
          std::min(options.stream_slack_mb * 1_MiB, properties.total_bytes / kStreamSlackShare)),
      max_chunk_bytes_(std::max(options.max_chunk_mb * 1_MiB, properties.page_bytes)),
      chunk_divisor_(options.chunk_divisor),
      cross_stream_(options.cross_stream == "never"    ? CrossStream::Never
                    : options.cross_stream == "passed" ? CrossStream::Passed
                    : options.cross_stream == "lend"   ? CrossStream::Lend
                                                       : CrossStream::Wait),
      level_(level),
      checked_pool_(checked_pool),
      scrubs_(options.scrub == "on"),
      addresses_(addresses),
      store_(driver, device, listeners, level == Isolation::Off ? Reach::Shared : Reach::Private) {}

// Gives all memory back. Nobody may use a block of it any more.
PagedStrategy::~PagedStrategy() {
    for (auto& [key, owner] : arenas_) {
        for (const StaleRange& stale : owner->stale) {
            static_cast<void>(
                store_.unmap(owner->arena, stale.tile->address, stale.tile->bytes, stale.made));
        }
    }
    store_.release_all();
    for (auto& [key, owner] : arenas_) {
        addresses_.set(owner->arena.base(), owner->arena.bytes(), nullptr);
        static_cast<void>(driver_.unreserve(owner->arena.base(), owner->arena.bytes()));
    }
}

Block* PagedStrategy::take_cached(const Request& request) {
    if (go_home_due_ && !request.capturing) { go_home(); }
    if (request.at != 0) { return take_at(request.pool, request.at, request.bytes); }
    StreamArena* owner = recent_;
    const ArenaKey key{device_, request.pool, request.stream, request.stream_id};
    if (owner == nullptr || owner->arena.key() != key) {
        auto it = arenas_.find(key);
        if (it == arenas_.end()) { return nullptr; }
        owner = recent_ = it->second.get();
    }
    if (request.for_graph) { owner->captured = true; }
    if (owner->no_split) { return take_whole(*owner, request.bytes); }
    Block* tile = owner->arena.free_blocks().find(request.bytes, request.alignment);
    if (tile == nullptr) { return nullptr; }
    const Address at = round_up(tile->address, request.alignment);
    return may_take(*owner, at, request) ? take(tile, at, request.bytes) : nullptr;
}

Block* PagedStrategy::take(Block* tile, Address at, Bytes bytes) {
    used_bytes_ += bytes;
    used_bytes_peak_ = std::max(used_bytes_peak_, used_bytes_);
    recent_bytes_peak_ = std::max(recent_bytes_peak_, used_bytes_);
    return tile->arena->carve(tile, at, bytes);
}

void PagedStrategy::give(Block* block) {
    if (block->pin_count > 0) {  // nobody gets it before the last unpin()
        if (block->kind == TileKind::Used) { set_pending(block); }
        block->given_while_pinned = true;
        return;
    }
    used_bytes_ -= block->bytes;
    if (block->borrower != nullptr) { give_back(block); }
    forget_pattern(block);
    block->arena->give(block);
    if (used_bytes_ == 0 && disturbed_) {
        go_home_due_ = true;
        fence_everything();
    }
}

Block* PagedStrategy::find(Address address) {
    Arena* arena = addresses_.find(address);
    if (arena == nullptr) { return nullptr; }
    const std::uintptr_t tagged = arena->tagged_start(address);
    if (tagged == 0 || (tagged & 1) != 0) { return nullptr; }
    auto* block = reinterpret_cast<Block*>(tagged);
    return block->address == address ? block : nullptr;
}

BaseAllocation PagedStrategy::base_of(const Block* block) const {
    return {block->arena->base(), block->arena->bytes()};
}

Result<StreamArena*> PagedStrategy::arena_for(const Request& request) {
    const ArenaKey key{device_, request.pool, request.stream, request.stream_id};
    auto it = arenas_.find(key);
    Result<StreamArena*> owner = it != arenas_.end() ? it->second.get() : make_arena(request);
    if (owner && request.for_graph) { (*owner)->captured = true; }
    return owner;
}

// Four times the card's memory in addresses, so that no pattern of frees runs out of them; less if
// the process has fewer left.
Result<StreamArena*> PagedStrategy::make_arena(const Request& request) {
    Bytes bytes = round_up(4 * total_bytes_, Arena::kAlignmentBytes);
    Result<Address> base = driver_.reserve(device_, bytes, Arena::kAlignmentBytes);
    if (!base) {
        drop_unused_arenas();
        base = driver_.reserve(device_, bytes, Arena::kAlignmentBytes);
    }
    while (!base && bytes > total_bytes_ + Arena::kAlignmentBytes) {
        bytes = round_up(bytes / 2, Arena::kAlignmentBytes);
        base = driver_.reserve(device_, bytes, Arena::kAlignmentBytes);
    }
    if (!base) { return base.status(); }
    const ArenaKey key{device_, request.pool, request.stream, request.stream_id};
    auto owner =
        std::make_unique<StreamArena>(key, *base, bytes, page_bytes_, blocks_, driver_, device_);
    if (!owner->arena.valid() || *base % Arena::kAlignmentBytes != 0 ||
        *base + bytes > AddressMap::kEndAddress) {
        static_cast<void>(driver_.unreserve(*base, bytes));
        return Status(Code::NotSupported, "the reserved address range cannot be indexed");
    }
    owner->no_split = no_split_pools_.contains(request.pool);
    // A region's own, and no graph's.
    owner->released = request.pool != PoolId{} && request.pool == checked_pool_;
    addresses_.set(*base, bytes, &owner->arena);
    StreamArena* made = owner.get();
    arenas_.emplace(key, std::move(owner));
    return made;
}

void PagedStrategy::poll() {
    for (auto& [key, owner] : arenas_) {
        if (owner->stale.empty()) { continue; }
        owner->fences.poll();
        clear_stale(*owner);
    }
}

// Old addresses whose fence has passed become holes. A half-made mapping that the driver refuses to
// undo keeps them blocked.
void PagedStrategy::clear_stale(StreamArena& owner) {
    auto done = [&](const StaleRange& stale) {
        for (const BorrowedUse& use : stale.borrowed_uses) { use.borrower->fences.poll(); }
        if (stale.count > owner.fences.passed_count() ||
            !StreamArena::returned(stale.borrowed_uses)) {
            return false;
        }
        const Block* tile = stale.tile;
        if (stale.made == ChunkStore::Made::Whole) {
            store_.leave(stale.chunk, owner.arena, tile->address);
        } else if (!store_.unmap(owner.arena, tile->address, tile->bytes, stale.made).ok()) {
            return false;
        }
        --stale.chunk->stale_count;
        owner.arena.clear_stale(stale.tile);
        return true;
    };
    owner.stale.erase(std::remove_if(owner.stale.begin(), owner.stale.end(), done),
                      owner.stale.end());
}

Result<Bytes> PagedStrategy::trim(Bytes bytes, Wait wait) {
    Bytes given = 0;
    for (std::size_t i = store_.spares().size(); i-- > 0 && given < bytes;) {
        Chunk* chunk = store_.spares()[i];
        if (wait == Wait::Yes) {
            if (Status status = wait_for_stale(chunk); !status.ok()) { return status; }
        }
        if (chunk->stale_count > 0) { continue; }
        if (Status status = store_.end_kept(chunk); !status.ok()) { return status; }
        given += chunk->bytes;
        forget_home(chunk);
        if (Status status = store_.release(chunk); !status.ok()) { return status; }
    }
    for (auto& [key, owner] : arenas_) {
        if (wait == Wait::Ask) { fence_and_poll(*owner); }
    }
    for (auto& [key, owner] : arenas_) {
        if (!owner->shared() || given >= bytes) { continue; }
        Result<Bytes> part = break_idle(*owner, Window{}, bytes - given, wait);
        if (!part) { return part; }
        given += *part;
    }
    drop_unused_arenas();
    if (given > 0) {  // twice in a row is once
        std::ranges::rotate(peaks_between_trims_, peaks_between_trims_.begin() + 1);
        peaks_between_trims_.back() = recent_bytes_peak_;
        expected_bytes_ = std::ranges::max(peaks_between_trims_);
        recent_bytes_peak_ = used_bytes_;
        ask_card_from_bytes_ = 0;
    }
    return given;
}

// Releases idle chunks of one arena outside a window, from the end of the arena down.
Result<Bytes> PagedStrategy::break_idle(StreamArena& owner, const Window& window, Bytes wanted,
                                        Wait wait) {
    std::vector<Chunk*> idle;
    for (const Block* tile : owner.arena.roomy_blocks()) {
        owner.arena.for_each_idle_chunk(tile, [&](Chunk* chunk) {
            const bool inside = chunk->address < window.end() && chunk->end() > window.begin;
            const bool may_go = wait != Wait::No || !needs_scrub(chunk);
            if (chunk->pin_count == 0 && !inside && may_go) { idle.push_back(chunk); }
        });
    }
    Bytes given = 0;
    for (auto it = idle.rbegin(); it != idle.rend() && given < wanted; ++it) {
        Chunk* chunk = *it;
        if (!owner.quiet(chunk) || chunk->stale_count > 0) {
            if (wait != Wait::Yes) { continue; }
            if (Status status = wait_for_chunk(owner, chunk); !status.ok()) { return status; }
            if (Status status = wait_for_stale(chunk); !status.ok()) { return status; }
            if (chunk->stale_count > 0) { continue; }
        }
        const Bytes bytes = chunk->bytes;
        if (Status status = release_idle(owner, chunk); !status.ok()) { return status; }
        given += bytes;
    }
    return given;
}

// Work of a stream that was destroyed unfenced, and of graphs, which were launched on streams that
// we do not know, can only be waited for through the device.
Status PagedStrategy::wait_for(StreamArena& owner, std::uint64_t count) {
    ++counters_.host_wait_count;
    if (!owner.captured && owner.fences.synchronize(count, owner.arena.free_count).ok()) {
        return {};
    }
    Status status = driver_.synchronize_device(device_);
    if (!status.ok()) { return status; }
    owner.fences.all_passed(owner.arena.free_count);
    // A released pool's graphs are gone, and nobody captures with its memory again.
    if (owner.shared()) { owner.captured = false; }
    return {};
}

// The old addresses of a chunk that moved have to be unmapped before it can be released.
Status PagedStrategy::wait_for_stale(const Chunk* chunk) {
    if (chunk->stale_count == 0) { return {}; }
    for (auto& [key, owner] : arenas_) {
        for (const StaleRange& stale : owner->stale) {
            if (stale.chunk != chunk) { continue; }
            if (Status status = wait_for(*owner, stale.count); !status.ok()) { return status; }
            if (Status status = wait_for_uses(stale.borrowed_uses); !status.ok()) { return status; }
        }
        clear_stale(*owner);
    }
    return {};
}

Status PagedStrategy::release_idle(StreamArena& owner, Chunk* chunk) {
    if (Status status = scrub(owner, chunk); !status.ok()) { return status; }
    if (Status status = store_.end_kept(chunk); !status.ok()) { return status; }
    Status status = store_.unmap(owner.arena, chunk->address, chunk->bytes);
    if (!status.ok()) { return status; }
    owner.arena.vacate(chunk, TileKind::Hole);
    store_.set_spare(chunk);
    forget_home(chunk);
    return store_.release(chunk);
}

void PagedStrategy::pin(Block* block) {
    ++block->pin_count;
    block->arena->for_each_chunk(block->address, block->end(),
                                 [](Chunk* chunk) { ++chunk->pin_count; });
}

void PagedStrategy::unpin(Block* block) {
    --block->pin_count;
    block->arena->for_each_chunk(block->address, block->end(),
                                 [](Chunk* chunk) { --chunk->pin_count; });
    if (block->pin_count == 0 && std::exchange(block->given_while_pinned, false)) { give(block); }
}

}  // namespace gma
