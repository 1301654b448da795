// Where a block could lie when no mapped free block holds it: the window that misses the fewest
// pages. Finding is apart from committing; nothing here changes an arena.
#pragma once

#include <vector>

#include "core/arena.h"

namespace gma {

struct Window {
    Address begin = 0;
    Bytes bytes = 0;
    Block* region = nullptr;  // first tile of the run of Free tiles and Holes around it
    Bytes missing_bytes = 0;  // whole pages without memory
    Address end() const { return begin + bytes; }
    bool found() const { return region != nullptr; }
};

// Pages without memory inside a window, one entry a Hole, with the room the Hole has around them.
struct MissingRun {
    Address begin = 0;
    Bytes bytes = 0;
    Bytes room_before = 0;
    Bytes room_after = 0;
};

// Tries both ends of every Free tile next to a Hole, and the end of the arena. Fewest missing
// pages first, then the lowest address. Not found: the arena's addresses are used up.
Window best_window(const Arena& arena, Bytes bytes, Bytes alignment);
// The window that starts in (or just before) the arena's last Hole, which has room for any chunk.
Window last_window(const Arena& arena, Bytes bytes, Bytes alignment);
// The window that starts at `at`; not found if a block lies there.
Window window_at(const Arena& arena, Address at, Bytes bytes);
// The lowest Hole with room for whole pages.
Window hole_window(const Arena& arena, Bytes bytes);
std::vector<MissingRun> missing_runs(const Arena& arena, const Window& window);

}  // namespace gma
