// An arena is one reserved address range of one stream (and private pool). Its blocks tile it:
//   sum(block.bytes) == bytes(),
//   no two neighbours are both Free, and no two are both Holes.
// Memory lies behind it page by page:
//   a page has a chunk exactly when a Free, Used or Pending block touches it;
//   a chunk is idle exactly when one Free block holds all of it;
//   mapped_bytes() == sum(chunk.bytes), split_bytes() == sum of Free bytes on chunks not idle.
// All uses of an arena's memory are ordered by its stream, save those that record_stream added and
// that Pending blocks wait for. So a Free block may be handed out again at once.
//
// The owner is PagedStrategy; the device's lock is held for every call, except tagged_start().
#pragma once

#include <atomic>
#include <cstdint>

#include "core/allocator.h"
#include "core/block.h"
#include "core/by_address.h"
#include "core/chunk.h"
#include "core/free_index.h"
#include "core/lazy_array.h"

namespace gma {

struct ArenaKey {
    int device = 0;
    PoolId pool;
    Stream stream = nullptr;
    std::uint64_t stream_id = 0;
    friend auto operator<=>(const ArenaKey&, const ArenaKey&) = default;
};

class Arena {
public:
    // No allocated block is smaller, so that at most one starts in a granule.
    static constexpr Bytes kGranuleBytes = 4_KiB;
    // Arenas begin and end on multiples of this, so that an address names its arena.
    static constexpr Bytes kAlignmentBytes = 4_GiB;

    Arena(ArenaKey key, Address base, Bytes bytes, Bytes page_bytes, BlockPool& pool);
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    const ArenaKey& key() const { return key_; }
    Address base() const { return base_; }
    Bytes bytes() const { return bytes_; }
    Bytes page_bytes() const { return page_bytes_; }
    bool valid() const { return chunks_.valid() && starts_.valid(); }
    // Nothing is handed out or pending.
    bool empty() const { return used_count_ == 0; }
    Bytes mapped_bytes() const { return mapped_bytes_; }
    // The Free blocks that lie on chunks which other blocks use too, and their bytes there.
    std::int64_t split_count() const { return split_count_; }
    Bytes split_bytes() const { return split_bytes_; }
    Bytes free_bytes() const { return free_bytes_; }
    bool contains(Address address) const { return address - base_ < bytes_; }
    // The tile that holds `address`: O(tiles) where no index has it.
    Block* tile_at(Address address) const;
    Block* first() const { return first_; }
    const FreeIndex& free_blocks() const { return free_; }
    const ByAddress& holes() const { return holes_; }
    // The Free blocks of at least a page: where idle chunks can be.
    const ByAddress& roomy_blocks() const { return roomy_; }

    // Blocks. carve() makes [at, at + bytes) of a Free tile a Used block.
    Block* carve(Block* tile, Address at, Bytes bytes);
    void set_pending(Block* block) {
        block->kind = TileKind::Pending;
        block->freed_at = ++free_count;
    }
    void give(Block* block);  // Used or Pending -> Free
    void set_slab(Block* block, Slab* slab);

    // Memory. The range of `chunk` lies in Holes; afterwards it is Free.
    void fill(Chunk* chunk);
    // The range of the idle `chunk` becomes Stale or a Hole; returns that tile.
    Block* vacate(Chunk* chunk, TileKind to);
    void clear_stale(Block* tile);
    // A range inside a Hole becomes Stale.
    Block* block(Address address, Bytes bytes);

    Chunk* chunk_at(Address address) const { return chunks_[page_index(address)]; }
    // The Free tile that holds all of `chunk`, or nullptr when it is not idle.
    Block* idle_tile(const Chunk* chunk) const;
    // Idle chunks inside a Free tile, in address order.
    template <class Visit>
    void for_each_idle_chunk(const Block* tile, Visit&& visit) const;
    template <class Visit>
    void for_each_chunk(Address begin, Address end, Visit&& visit) const;

    // Changes with every Free tile that comes or goes. Lock-free.
    std::uint64_t layout() const {
        return std::atomic_ref(const_cast<std::uint64_t&>(layout_)).load(std::memory_order_relaxed);
    }
    // Whether a request of the Used block's size would get its place, were it given back now.
    bool would_find(const Block* block) const;

    // What starts in the granule of `address`: a Block*, or a Slab* with bit 0 set. Lock-free, and
    // stable while the caller owns a block there.
    std::uintptr_t tagged_start(Address address) {
        return std::atomic_ref(starts_[(address - base_) / kGranuleBytes])
            .load(std::memory_order_acquire);
    }

    std::uint64_t free_count = 0;    // frees so far: the clock that fences and chunks refer to
    std::uint64_t fenced_count = 0;  // frees that the newest recorded fence covers

private:
    std::size_t page_index(Address address) const { return (address - base_) / page_bytes_; }
    void set_start(Address address, std::uintptr_t value) {
        std::atomic_ref(starts_[(address - base_) / kGranuleBytes])
            .store(value, std::memory_order_release);
    }
    Block* split(Block* tile, Address at);
    Block* isolate(Block* tile, Address begin, Address end);
    void set_kind(Block* tile, TileKind kind);
    void list(Block* tile);
    void unlist(Block* tile);
    void change_layout() { std::atomic_ref(layout_).store(layout_ + 1, std::memory_order_relaxed); }
    static void tell_neighbours(const Block* tile, bool is_free);
    Bytes shared_bytes(const Block* tile) const;
    Block* merge(Block* tile);
    void absorb_next(Block* tile);

    const ArenaKey key_;
    const Address base_;
    const Bytes bytes_;
    const Bytes page_bytes_;
    BlockPool& pool_;
    Block* first_;
    std::uint64_t used_count_ = 0;
    std::uint64_t layout_ = 1;
    Bytes mapped_bytes_ = 0;
    std::int64_t split_count_ = 0;
    Bytes split_bytes_ = 0;
    Bytes free_bytes_ = 0;
    FreeIndex free_;
    ByAddress roomy_;
    ByAddress holes_;
    LazyArray<Chunk*> chunks_;          // by page
    LazyArray<std::uintptr_t> starts_;  // by granule
};

template <class Visit>
void Arena::for_each_chunk(Address begin, Address end, Visit&& visit) const {
    while (begin < end) {
        Chunk* chunk = chunk_at(begin);
        begin = chunk->end();
        visit(chunk);
    }
}

template <class Visit>
void Arena::for_each_idle_chunk(const Block* tile, Visit&& visit) const {
    Address at = tile->address;
    const Address end = tile->end();
    while (at + page_bytes_ <= end) {
        Chunk* chunk = chunk_at(at);
        at = chunk->end();
        if (chunk->address >= tile->address && chunk->end() <= end) { visit(chunk); }
    }
}

}  // namespace gma
