// The physical memory of a device: creates, maps, unmaps and releases chunks, and counts them.
//   reserved_bytes() == sum of the bytes of all chunks, mapped and spare.
// Every range that is mapped, and that is no longer, is told to the listeners (tell_segment).
// A chunk that has moved keeps its old mappings until their addresses are needed for another chunk:
// they cost nothing, and going back there costs no call (Note [Kept mappings]).
// Each call either does all of its work or undoes it. A handle that the driver refuses to release
// is counted in leaked_count() and set aside for good.
#pragma once

#include <map>
#include <unordered_set>
#include <vector>

#include "base/status.h"
#include "core/arena.h"
#include "core/chunk.h"
#include "core/listeners.h"
#include "driver/driver.h"

namespace gma {

class ChunkStore {
public:
    ChunkStore(Driver& driver, int device, const Listeners& listeners, Reach reach)
        : driver_(driver), device_(device), listeners_(listeners), reach_(reach) {}
    ChunkStore(const ChunkStore&) = delete;
    ChunkStore& operator=(const ChunkStore&) = delete;
    ~ChunkStore();

    Bytes reserved_bytes() const { return reserved_bytes_; }
    Bytes spare_bytes() const;
    std::size_t chunk_count() const { return chunks_.size(); }
    std::int64_t created_count() const { return created_count_; }
    std::int64_t released_count() const { return released_count_; }
    std::int64_t leaked_count() const { return leaked_count_; }
    // Grows with every chunk that comes, goes or changes its place.
    std::uint64_t change_count() const { return change_count_; }
    const std::vector<Chunk*>& spares() const { return spares_; }
    // All chunks, oldest first.
    std::vector<Chunk*> chunks() const;

    // New memory, spare at first.
    Result<Chunk*> create(Bytes bytes);
    // Makes a chunk readable and writable at `address`; kept mappings in the way are ended. A
    // mapping that the chunk has elsewhere stays until leave() or unmap(). On failure the chunk is
    // as it was; the driver may even refuse to undo the half-made mapping, which then blocks its
    // addresses.
    enum class Undo : std::uint8_t { Done, Refused };
    Status map(Chunk* chunk, Arena* arena, Address address, Undo& undo);
    // Ends one mapping; no running work may use it any more. A half-made one was never told.
    enum class Made : std::uint8_t { Half, Whole };
    Status unmap(const Arena& arena, Address address, Bytes bytes, Made made = Made::Whole);
    // Nothing uses the chunk at `address` any more: the mapping is kept, the addresses are free.
    void leave(Chunk* chunk, const Arena& arena, Address address);
    // By address.
    struct Kept {
        Chunk* chunk = nullptr;
        Bytes bytes = 0;
        std::uint64_t round = 0;  // in which the chunk left
    };
    // What was kept until now is not to be chosen for it: only map() still makes use of it.
    void begin_round() { ++round_; }
    bool is_of_this_round(const Kept& kept) const { return kept.round == round_; }
    using KeptMap = std::map<Address, Kept>;
    const KeptMap& kept() const { return kept_; }
    // Whether to map the chunk (nullptr: a new one) there would end kept mappings.
    bool ends_kept(const Chunk* chunk, Address begin, Address end) const;
    // The end of the last kept mapping in a range, or its beginning.
    Address kept_end(Address begin, Address end) const;
    // Ends the kept mappings in a range, so that it can be given back, or of a chunk.
    Status end_kept(Address begin, Address end);
    Status end_kept(const Chunk* chunk);
    void set_spare(Chunk* chunk);
    void sort_spares();  // oldest first, whatever order they came in
    // Gives the memory of a chunk without mappings back; the chunk is gone afterwards, whatever
    // happens.
    Status release(Chunk* chunk);
    // Unmaps and releases every chunk, mapped ones too, when nobody uses any memory any more.
    void release_all();

private:
    static constexpr std::size_t kKeptPerChunk = 8;

    KeptMap::const_iterator first_kept(Address address) const;
    Status end_kept(KeptMap::const_iterator kept);
    void tell(Action action, const Arena& arena, Address address, Bytes bytes) const;

    Driver& driver_;
    const int device_;
    const Listeners& listeners_;
    const Reach reach_;
    Bytes reserved_bytes_ = 0;
    std::uint64_t change_count_ = 0;
    std::int64_t created_count_ = 0;
    std::int64_t released_count_ = 0;
    std::int64_t leaked_count_ = 0;
    std::unordered_set<Chunk*> chunks_;
    std::vector<Chunk*> spares_;
    KeptMap kept_;
    std::uint64_t round_ = 0;
};

}  // namespace gma
