// A block is one tile of a segment or arena: a run of addresses in one state.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/units.h"
#include "driver/driver.h"

namespace gma {

class Arena;
struct Segment;
struct Slab;
struct StreamArena;

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
    Arena* arena = nullptr;           // paged: the arena it tiles
    Segment* segment = nullptr;       // split, direct: the driver segment it tiles
    StreamArena* borrower = nullptr;  // paged, Used or Pending: lent to this one's stream
    Slab* slab = nullptr;             // Used, and carved into small objects
    std::uint64_t freed_at = 0;       // Pending: the arena's free count at its free
    Bytes split_bytes = 0;            // paged, Free: on chunks that are not idle; as it was listed
    std::uint64_t found_at = 0;   // paged, Used: Arena::layout() in which the search finds it again
    std::uint32_t pin_count = 0;  // exported: stays where it is
    TileKind kind = TileKind::Free;
    bool recorded = false;     // a stream other than its own was recorded
    bool parked = false;       // freed, and kept by a thread cache; see is_parked()
    bool free_before = false;  // paged, Used: the neighbour is Free; see has_free_neighbour()
    bool free_after = false;
    bool given_while_pinned = false;  // paged: Pending until unpin()
    bool checked = false;             // its free waits for the check of its redzone

    Address end() const { return address + bytes; }
    Stream stream() const;  // that its uses are ordered by

    // A parked block is Used as far as its arena knows. These are written without the device's lock
    // by the thread that parks the block and takes it again.
    bool is_parked() const { return load(parked); }
    std::uint64_t found_at_layout() const {
        return std::atomic_ref(const_cast<std::uint64_t&>(found_at))
            .load(std::memory_order_relaxed);
    }
    void set_found_at(std::uint64_t layout) {
        std::atomic_ref(found_at).store(layout, std::memory_order_relaxed);
    }
    // Freed, it would join a neighbour. Kept by the arena, and asked without the device's lock.
    bool has_free_neighbour() const { return load(free_before) || load(free_after); }
    static void set_flag(bool& flag, bool value) {
        std::atomic_ref(flag).store(value, std::memory_order_relaxed);
    }
    // Returns what it was: true twice in a row is a double free.
    bool set_parked(bool value) {
        return std::atomic_ref(parked).exchange(value, std::memory_order_acq_rel);
    }
    Bytes requested() const {
        return std::atomic_ref(const_cast<Bytes&>(requested_bytes)).load(std::memory_order_relaxed);
    }
    void set_requested(Bytes wanted_bytes) {
        std::atomic_ref(requested_bytes).store(wanted_bytes, std::memory_order_relaxed);
    }

private:
    static bool load(const bool& flag) {
        return std::atomic_ref(const_cast<bool&>(flag)).load(std::memory_order_relaxed);
    }
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
