// A handle of isolated memory, and what mapping several of them side by side means.
#pragma once

#include <vector>

#include "core/isolation.h"

namespace gma {

struct GuardedChunk {
    Handle handle{};
    Bytes bytes = 0;         // whole pages
    bool patterned = false;  // it holds the pattern, all of it, unless someone writes freed memory
    bool mapped = false;
    std::uint64_t stream_id = 0;  // whose it is while it is kept
    Address window = 0;           // a fresh window that it is mapped into, for who wants such a one
    LedgerEntry tensor;           // that had it last, if any is known
    Address last_begin = 0;       // where it was mapped then
    std::uint64_t look = 0;       // GuardedMemory's, that is queued at where it is mapped; 0: none
};

enum class LastPlace : std::uint8_t { Keep, Note };

// From `at` on, accessible. Those before one that failed stay mapped.
Status map_chunks(Driver& driver, int device, Address at, std::vector<GuardedChunk>& chunks);
// Those that are mapped, also behind one that the driver refuses. Returns the first failure.
Status unmap_chunks(Driver& driver, Address at, LastPlace last, std::vector<GuardedChunk>& chunks);

}  // namespace gma
