// Memory and addresses of its own for each block, between guards:
//
//   window    [ guard | pages ............... | guard ]     reserved; the guards are never mapped
//   guard:upper               [ gap | block  ]              the block ends where the guard begins,
//                                                           but for its alignment
//   guard:lower       [ block | gap ]
//
// The pages are handles that nobody else has: one, where it can be. What the tensor does not
// fill of them holds kPattern from the first use to the free, which checks it. Then all of it is
// filled with the pattern; once the fence of that has passed, the handles are unmapped and go to
// the cache, and the window into quarantine. With a mapping thread they go there by way of it, and
// come mapped in a fresh window, for the next tensor of as many pages. When a handle is used again
// its pages must still hold the pattern: a write that came after the fill and before the unmap is
// the last tensor's.
//
//   in_use_bytes() == sum of the pages of all windows;  in_use + cached + stuck <= limit
//   cached_bytes() == the cache's and those on their way to it
//
// What is done while a graph is captured cannot fill or check: such a block has no pattern.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/chunk_cache.h"
#include "core/ledger.h"
#include "core/mapping_thread.h"
#include "core/segment_memory.h"
#include "core/window_addresses.h"

namespace gma {

class GuardedMemory final : public SegmentMemory {
public:
    GuardedMemory(Driver& driver, int device, DeviceProperties properties, const Options& options,
                  Isolation level, Ledger& ledger);
    ~GuardedMemory() override;

    // What a block of `requested_bytes` takes of its pages: a multiple of the alignment.
    Bytes block_bytes(Bytes requested_bytes) const {
        return round_up(std::max(requested_bytes, Bytes{1}), alignment_);
    }

    Bytes held_bytes(Bytes block_bytes) const override {
        return round_up(block_bytes, page_bytes_);
    }
    BaseAllocation extent(const Segment& segment) const override;
    // OutOfMemory, without a driver call, beyond the limit.
    Result<Address> obtain(Bytes block_bytes, const Request& request) override;
    Status give_back(const Segment& segment) override;

    // The block was freed and all that was recorded for it is done but its stream's work: queues
    // the check and the fill. Does nothing the second time.
    void sweep(const Segment& segment);
    // A private pool hands the block out again: a graph has written what it likes.
    void renew(Address address, Bytes requested_bytes);
    // The ranges of an allocated block that must hold the pattern; empty: it has none.
    std::vector<ByteRange> gaps(Address address) const;
    // Tells the ledger what the checks of used handles that are done have found.
    void collect_looks(bool wait);
    // Now and then, those that are done.
    void poll_looks();
    bool has_looks() const { return !looks_.empty(); }

    // The pages under a block.
    BaseAllocation pages(Address address) const;
    ByteRange window(Address address) const;  // guards included
    Bytes in_use_bytes() const { return in_use_bytes_; }
    Bytes cached_bytes() const { return cache_.bytes() + moving_bytes_; }
    // Pages that the driver has refused to unmap; tried again by retry_stuck().
    Bytes stuck_bytes() const { return stuck_bytes_; }
    // With those that the mapping thread is about to unmap.
    Bytes quarantined_bytes() const;
    void set_limit(Bytes limit_bytes) { limit_bytes_ = limit_bytes; }
    // Gives cached handles back to the driver, the oldest first, until `bytes` are gone.
    Result<Bytes> release_cached(Bytes bytes) { return release(bytes, Moving::Await); }
    void retry_stuck();
    // Waits for the mapping thread.
    void settle();
    // From now on so much is kept as if no more had ever been in use than now.
    void forget_peak() { in_use_peak_bytes_ = in_use_bytes_; }
    std::int64_t created_count() const { return created_count_; }
    std::int64_t released_count() const { return released_count_; }
    std::int64_t leaked_count() const { return leaked_count_; }
    // Blocks that the driver could not check.
    std::int64_t unchecked_count() const { return unchecked_count_; }
    Status audit() const;

private:
    static constexpr Bytes kMaxChunkBytes = 1_GiB;
    // Up to here a handle is released and another made in the time that two more take to map.
    static constexpr Bytes kMaxReplacedBytes = 128_MiB;
    // As many go into one look as the driver takes without a list.
    static constexpr std::size_t kLookChunks = 16;
    static constexpr Bytes kLookBytes = 32_MiB;
    // Held beyond what was in use at most: such a share of it, this at least, or that share of the
    // card, so that the thread has windows ready for a burst of requests.
    static constexpr Bytes kKeptBytes = 128_MiB;
    static constexpr Bytes kKeptShare = 64;
    static constexpr Bytes kKeptShareOfCard = 128;

    using MoveKey = std::pair<std::uint64_t, Bytes>;  // the stream's id, the first handle's bytes

    struct Window {
        Address begin = 0;
        Bytes bytes = 0;  // guards included
        Address block = 0;
        Address pages = 0;
        Bytes pages_bytes = 0;
        Bytes requested_bytes = 0;
        Stream stream = nullptr;
        std::uint64_t stream_id = 0;
        std::vector<GuardedChunk> chunks;
        bool patterned = false;  // the gaps hold the pattern
        bool swept = false;      // freed: all of the pages will hold it when the stream gets there
        Check check{};           // of the gaps, at the free
    };

    // A check of handles that others had before, queued where they are mapped.
    struct Look {
        Check check{};
        std::vector<std::pair<Address, GuardedChunk>> chunks;  // as they were, and where they are
    };

    // On its way through the mapping thread.
    struct Move final : MappingJob {
        Window window;      // without its handles: the job has them; begin 0: retired already
        Address fresh = 0;  // the window they go to, of the same size; 0: none
        MoveKey key;
    };

    Status open(Window& window, Bytes block_bytes);
    Status gather(Window& window);
    bool dissolve(GuardedChunk& chunk);
    Bytes excess_bytes(const Window& window, Bytes missing_bytes, Bytes new_bytes) const;
    Status check_limit(const Window& window) const;
    Result<GuardedChunk> new_chunk(const Window& window, Bytes bytes, Bytes excess_bytes);
    Result<GuardedChunk> create_chunk(Bytes bytes);
    Status fill_fresh(Window& window);
    void look_at_reused(Window& window);
    bool look_and_fill(Window& window, Stream stream);
    enum class Passage : std::uint8_t { Ask, Wait, Known };  // whether its stream has got there
    // False: it has not, and nobody waited.
    bool collect_look(std::uint64_t number, Passage passage);
    void end_look(GuardedChunk& chunk, Passage passage);
    std::vector<GuardedChunk> put_looked_at_aside();
    void bring_back(const std::vector<GuardedChunk>& aside);
    void tell(const Look& look, const std::vector<Finding>& findings);
    // What its handles held when the tensor came was not the pattern: not its fault.
    bool is_spoiled(const Window& window) const;
    // The handles go to the cache and the addresses to whom they belong next.
    enum class Addresses : std::uint8_t { Unused, Used };
    Status close(Window& window, Addresses addresses);
    void put(Window& window, Addresses addresses);
    void retire(Window& window);
    void stick(Window window, Addresses addresses);
    Window fresh_window(Address begin, Bytes pages_bytes) const;
    bool move(Window& window);
    void take_moved();
    bool wait_moved();
    void end_move(MappingJob* job);
    Move* coming(std::uint64_t stream_id, Bytes least_bytes, Bytes most_bytes) const;
    // Does the rest of it here, unless it is done in a moment.
    bool hasten(Move* move);
    void keep_within(Bytes more_bytes);
    enum class Moving : std::uint8_t { Leave, Await };
    Result<Bytes> release(Bytes bytes, Moving moving);
    Bytes most_held_bytes(Bytes in_use_peak_bytes) const;
    Bytes kept_bytes() const;
    void collect(Window& window);
    static std::vector<ByteRange> gaps_of(const Window& window);

    Driver& driver_;
    const int device_;
    const Bytes page_bytes_;
    const Bytes alignment_;
    const Bytes least_kept_bytes_;
    const bool against_lower_;
    const bool poisons_;
    const bool scrubs_;
    const bool moves_;           // has a mapping thread
    const bool unmaps_at_once_;  // the free itself does; the thread only maps
    Ledger& ledger_;
    WindowAddresses addresses_;
    ChunkCache cache_;
    std::unordered_map<Address, Window> windows_;       // by the block's address
    std::unordered_map<Address, Address> quarantined_;  // a window's begin: its block
    std::vector<std::pair<Window, Addresses>> stuck_;
    std::map<MoveKey, std::deque<std::unique_ptr<Move>>> moving_;  // none is empty
    Bytes moving_bytes_ = 0;
    MappingThread thread_;
    std::map<std::uint64_t, Look> looks_;  // by number
    std::uint64_t next_look_ = 1;
    std::size_t poll_count_ = 0;
    std::unordered_set<Handle> spoiled_;  // written while they were nobody's, and not filled since
    Bytes limit_bytes_ = kMaxRequestBytes;
    Bytes in_use_bytes_ = 0;
    Bytes in_use_peak_bytes_ = 0;
    Bytes stuck_bytes_ = 0;
    std::int64_t created_count_ = 0;
    std::int64_t released_count_ = 0;
    std::int64_t leaked_count_ = 0;
    std::int64_t unchecked_count_ = 0;
};

}  // namespace gma
