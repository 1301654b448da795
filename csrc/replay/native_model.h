// A model of PyTorch's native caching allocator: which blocks it would use and what it would ask
// of the driver, with its default segments or with expandable ones. No memory, no GPU.
//
// Each pool has free lists for small (<= 1 MiB) and large requests. A request takes the smallest
// free block of its own stream that fits, the lowest address among equals; else a new segment;
// else everything idle is given back to the driver and it tries once more.
//   held_bytes == sum of segments, or of mapped pages of expandable ones
//   blocks tile their segment, and no two free neighbours of one kind (mapped or not) remain
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "driver/host_calls.h"
#include "replay/native_config.h"
#include "replay/segment_source.h"

namespace gma {

class NativeModel {
public:
    // Blocks are named by the caller: numbers below `block_count`, used again freely.
    NativeModel(const NativeConfig& config, SegmentSource segments, std::size_t block_count);
    NativeModel(const NativeModel&) = delete;
    NativeModel& operator=(const NativeModel&) = delete;

    // A segment that exists before the first event, and a block that is live in one. Only without
    // expandable segments. False if no such free range is known.
    void adopt_segment(const RecordedSegment& segment, bool is_small);
    bool adopt_block(std::uint32_t id, Address address, Bytes requested_bytes);

    // False: out of memory, after everything PyTorch tries.
    bool allocate(std::uint32_t id, Bytes requested_bytes, std::uint64_t stream,
                  std::uint32_t pool);
    void free(std::uint32_t id);
    // Freed, but another stream still uses it until complete().
    void free_later(std::uint32_t id);
    // Does nothing if the block was waited for in the meantime.
    void complete(std::uint32_t id);

    Address address(std::uint32_t id) const { return blocks_[id] ? blocks_[id]->address : 0; }
    Bytes held_bytes() const { return held_bytes_; }
    Bytes peak_held_bytes() const { return peak_held_bytes_; }
    void reset_peak() { peak_held_bytes_ = held_bytes_; }
    std::uint64_t retries() const { return retries_; }
    const CallTotals& totals() const { return totals_; }

    // Recounts the equations above; for tests.
    bool audit() const;

private:
    struct FreeLists;

    enum class State : std::uint8_t { Free, Allocated, Pending };

    struct Block {
        Address address = 0;
        Bytes bytes = 0;
        std::uint64_t stream = 0;
        FreeLists* lists = nullptr;
        Block* previous = nullptr;  // neighbours in the segment
        Block* next = nullptr;
        std::uint64_t age_base = 0;  // the lists' search count when it was freed
        State state = State::Free;
        bool mapped = true;  // false: addresses only
    };

    struct BySize {
        bool operator()(const Block* a, const Block* b) const;
    };
    struct ByAddress {
        bool operator()(const Block* a, const Block* b) const;
    };

    struct FreeLists {
        std::set<Block*, BySize> free;
        std::set<Block*, ByAddress> unmapped;  // only with expandable segments
        std::uint64_t searches = 0;
        std::uint32_t pool = 0;
        bool is_small = false;
    };

    struct Pool {
        FreeLists small;
        FreeLists large;
    };

    struct Request {
        Bytes bytes;
        Bytes segment_bytes;
        std::uint64_t stream;
        FreeLists* lists;
    };

    Block* make_block(Address address, Bytes bytes, std::uint64_t stream, FreeLists* lists);
    void drop_block(Block* block);
    FreeLists* lists_of(std::uint32_t pool, Bytes block_bytes);
    void charge(Call call, Bytes bytes, std::uint64_t times = 1);
    void hold(Bytes bytes);

    Block* find_free(const Request& request);
    Block* grow(const Request& request);
    Block* carve(Block* block, Bytes bytes);
    bool splits(const Block* block, Bytes bytes) const;
    void to_free(Block* block);
    void merge(Block* block, Block* neighbour);

    void collect_garbage();
    bool release_oversize(const Request& request);
    void release_idle();
    void release_segment(Block* block);
    void wait_for_pending();

    // Expandable segments (native_expandable.cpp).
    Bytes page_bytes(const FreeLists& lists) const;
    Block* prefer_nearly_full(Block* found, const Request& request) const;
    Block* grow_expandable(const Request& request);
    Block* expandable_room(const Request& request);
    bool map_front(Block* block, Bytes bytes);
    void unmap_whole_pages(Block* block);

    NativeConfig config_;
    SegmentSource segments_;
    std::deque<Block> storage_;
    std::vector<Block*> unused_;
    std::vector<Block*> blocks_;  // by the caller's number
    std::map<std::uint32_t, std::unique_ptr<Pool>> pools_;
    std::set<std::uint32_t> pending_;
    Address next_reservation_ = 64_TiB;
    Bytes held_bytes_ = 0;
    Bytes peak_held_bytes_ = 0;
    std::uint64_t retries_ = 0;
    CallTotals totals_;
};

}  // namespace gma
