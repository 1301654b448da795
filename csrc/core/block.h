// A block is one tile of a segment or arena: a run of addresses in one state.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "driver/driver.h"

namespace gma {

class Arena;
struct Segment;
struct Slab;

enum class TileKind : std::uint8_t {
    Free,     // mapped, nobody uses it
    Used,     // handed out, or carved into a slab
    Pending,  // freed, but a recorded stream may still use it
    Hole,     // addresses without memory behind them; whole pages
    Stale,    // still mapped to a chunk that has moved away; whole pages, until its fence passes
};

// Blocks are linked in address order and tile their arena with no gap; of two neighbours at most
// one is Free and at most one is a Hole.
struct Block {
    Address address = 0;
    Bytes bytes = 0;
    Bytes requested_bytes = 0;
    Block* previous = nullptr;
    Block* next = nullptr;
    Arena* arena = nullptr;       // paged: the arena it tiles
    Segment* segment = nullptr;   // split, direct: the driver segment it tiles
    Slab* slab = nullptr;         // Used, and carved into small objects
    std::uint64_t freed_at = 0;   // Pending: the arena's free count at its free
    Bytes split_bytes = 0;        // paged, Free: on chunks that are not idle; as it was listed
    std::uint32_t pin_count = 0;  // exported: stays where it is
    TileKind kind = TileKind::Free;
    bool recorded = false;            // a stream other than its own was recorded
    bool given_while_pinned = false;  // paged: Pending until unpin()

    Address end() const { return address + bytes; }
    Stream stream() const;  // that its uses are ordered by
};

// Blocks come from here and keep their addresses for life.
class BlockPool {
public:
    BlockPool() = default;
    BlockPool(const BlockPool&) = delete;
    BlockPool& operator=(const BlockPool&) = delete;
    ~BlockPool() {
        for (Block* slice : slices_) { delete[] slice; }
    }

    Block* take() {
        if (free_ == nullptr) { refill(); }
        Block* block = free_;
        free_ = block->next;
        *block = Block{};
        return block;
    }
    void give(Block* block) {
        block->next = free_;
        free_ = block;
    }

private:
    static constexpr std::size_t kSliceCount = 256;
    void refill() {
        Block* slice = new Block[kSliceCount];
        slices_.push_back(slice);
        for (std::size_t i = kSliceCount; i-- > 0;) { give(&slice[i]); }
    }
    std::vector<Block*> slices_;
    Block* free_ = nullptr;
};

}  // namespace gma
