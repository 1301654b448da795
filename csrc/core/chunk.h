// A chunk is one physical handle: a whole number of pages, mapped at one place, or spare.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "driver/driver.h"

namespace gma {

class Arena;
struct StreamArena;

// Work of a stream that had borrowed memory: up to the free numbered `count` on that stream's
// clock.
struct BorrowedUse {
    StreamArena* borrower = nullptr;
    std::uint64_t count = 0;
};

struct Chunk {
    Handle handle{};
    Bytes bytes = 0;
    Arena* arena = nullptr;       // nullptr: spare
    Address address = 0;          // where it is mapped
    Arena* home_arena = nullptr;  // where it was mapped first; nullptr: nowhere in particular
    Address home = 0;
    std::uint64_t serial = 0;       // in order of creation
    std::uint64_t freed_at = 0;     // the arena's free count when a block on it was last freed
    std::uint32_t pin_count = 0;    // exported: not moved, reused or released
    std::uint32_t stale_count = 0;  // old mappings that may be in use; not released before
    std::vector<BorrowedUse> borrowed_uses;  // that may not be done; one for each borrower
    std::vector<Address> kept;        // old mappings that nothing uses, oldest first (ChunkStore)
    std::size_t candidate_index = 0;  // in the last list of idle chunks that had it
    bool patterned = false;           // isolation: all of it that is free holds the pattern

    Address end() const { return address + bytes; }
    bool at_home() const { return arena != nullptr && arena == home_arena && address == home; }
};

}  // namespace gma
