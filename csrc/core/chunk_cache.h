// Physical memory that GuardedMemory holds for its next windows: handles by stream and size, mapped
// nowhere or in a fresh window. Each was filled with the pattern when it was given up.
//
//   bytes() == sum of the handles' bytes
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "core/guarded_chunk.h"

namespace gma {

class ChunkCache {
public:
    // Memory does not pass from one stream to another but through the driver.
    void put(std::uint64_t stream_id, GuardedChunk chunk);
    // The largest one of [least, most] bytes; handle 0 and 0 bytes if there is none. Of equals the
    // newest, but before those that came later one that is looked at: so that a look is for many.
    GuardedChunk take(std::uint64_t stream_id, Bytes least_bytes, Bytes most_bytes);
    // Those of just that size which take() gives next, as many at most, that are mapped and hold
    // the pattern but were not looked at. Until the next change.
    std::vector<GuardedChunk*> unseen(std::uint64_t stream_id, Bytes bytes, std::size_t most);
    // The one that has been here longest.
    GuardedChunk take_oldest();
    // Those that it picks, the oldest of a size first.
    std::vector<GuardedChunk> take_if(const std::function<bool(const GuardedChunk&)>& picks);
    Bytes bytes() const { return bytes_; }
    Bytes recounted_bytes() const;
    // The fresh windows that handles are mapped into.
    void add_windows(Bytes guard_bytes, std::vector<ByteRange>& windows) const;

private:
    struct Entry {
        GuardedChunk chunk;
        std::uint64_t order;
    };
    using Key = std::pair<std::uint64_t, Bytes>;      // stream id, chunk bytes
    using Chunks = std::map<Key, std::deque<Entry>>;  // none is empty
    // So many that came later are searched through.
    static constexpr std::size_t kLatecomers = 64;

    static std::deque<Entry>::iterator best_of(std::deque<Entry>& entries);
    void taken(Chunks::iterator from, const Entry& entry);

    Chunks chunks_;
    std::map<std::uint64_t, Key> by_order_;  // the same
    Bytes bytes_ = 0;
    std::uint64_t next_order_ = 0;
};

}  // namespace gma
