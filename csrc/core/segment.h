// A segment is one piece of memory from Driver::malloc, a pool's provider or GuardedMemory, for the
// strategies whose memory stays where it is.
// Its blocks tile it:
//   sum(block.bytes) == bytes,  and no two neighbours are both Free.
// It is idle when one Free block is all of it; only then may it be given back.
#pragma once

#include <cstdint>

#include "core/allocator.h"
#include "core/block.h"
#include "core/fence_line.h"

namespace gma {

class FreeIndex;

// One stream's order: all uses of its segments' memory follow it, save those that Pending blocks
// wait for. Frees are numbered, so that a fence can say which of them it covers.
struct StreamLine {
    StreamLine(Driver& driver, int device, Stream stream_in, std::uint64_t stream_id)
        : stream(stream_in), id(stream_id), fences(driver, device, stream_in, stream_id) {}

    const Stream stream;
    const std::uint64_t id;
    FenceLine fences;
    std::uint64_t free_count = 0;
    std::uint64_t segment_count = 0;
};

struct Segment {
    Address address = 0;
    Bytes bytes = 0;
    Bytes held_bytes = 0;  // physical memory that it takes
    StreamLine* line = nullptr;
    PoolId pool;                       // {0, 0} once its private pool is released
    PoolId origin;                     // the pool that it was obtained for
    std::uint64_t serial = 0;          // in order of creation
    Block* first = nullptr;            // never merged away: it starts where the segment does
    FreeIndex* free_blocks = nullptr;  // split: where its Free blocks are listed
    std::uint64_t freed_at = 0;        // the newest free of one of its blocks, on its line
    std::uint64_t freed_order = 0;     // the same, among all segments of the device
    std::uint64_t search_count = 0;    // split: searches when it became idle, for its age
    std::uint32_t pin_count = 0;
    bool captured = false;  // a graph may use it, on whatever stream: no fence speaks for it

    bool idle() const {
        return first->kind == TileKind::Free && first->next == nullptr && pin_count == 0;
    }
    bool shared() const { return pool == PoolId{}; }
    bool quiet() const { return !captured && freed_at <= line->fences.passed_count(); }
};

}  // namespace gma
