// The physical memory of a device: creates, maps, unmaps and releases chunks, and counts them.
//   reserved_bytes() == sum of the bytes of all chunks, mapped and spare.
// Each call either does all of its work or undoes it. A handle that the driver refuses to release
// is counted in leaked_count() and set aside for good.
#pragma once

#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "core/chunk.h"
#include "driver/driver.h"

namespace gma {

class ChunkStore {
public:
    ChunkStore(Driver& driver, int device) : driver_(driver), device_(device) {}
    ChunkStore(const ChunkStore&) = delete;
    ChunkStore& operator=(const ChunkStore&) = delete;
    ~ChunkStore();

    Bytes reserved_bytes() const { return reserved_bytes_; }
    Bytes spare_bytes() const;
    std::size_t chunk_count() const { return chunks_.size(); }
    std::int64_t created_count() const { return created_count_; }
    std::int64_t released_count() const { return released_count_; }
    std::int64_t leaked_count() const { return leaked_count_; }
    const std::vector<Chunk*>& spares() const { return spares_; }
    // All chunks, oldest first.
    std::vector<Chunk*> chunks() const;

    // New memory, spare at first.
    Result<Chunk*> create(Bytes bytes);
    // Makes a chunk readable and writable at `address`. A mapping that the chunk has elsewhere
    // stays until unmap(). On failure the chunk is as it was; the driver may even refuse to undo
    // the half-made mapping, which then blocks its addresses.
    enum class Undo : std::uint8_t { Done, Refused };
    Status map(Chunk* chunk, Arena* arena, Address address, Undo& undo);
    // Ends one mapping; no running work may use it any more.
    Status unmap(Address address, Bytes bytes) { return driver_.unmap(address, bytes); }
    void set_spare(Chunk* chunk);
    void sort_spares();  // oldest first, whatever order they came in
    // Gives an unmapped chunk's memory back; the chunk is gone afterwards, whatever happens.
    Status release(Chunk* chunk);
    // The same for every chunk, mapped ones too, when nobody uses any memory any more.
    void release_all();

private:
    Driver& driver_;
    const int device_;
    Bytes reserved_bytes_ = 0;
    std::int64_t created_count_ = 0;
    std::int64_t released_count_ = 0;
    std::int64_t leaked_count_ = 0;
    std::unordered_set<Chunk*> chunks_;
    std::vector<Chunk*> spares_;
};

}  // namespace gma
