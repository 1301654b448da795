// All segments of one device, their blocks by address, and the fences that giving one back needs.
//
//   reserved_bytes() == sum(segment.held_bytes) <= limit, unless the limit was lowered below it
//
// Where they come from is the SegmentMemory's business. Segments that come and go are told to the
// listeners (tell_segment).
//
// The driver's free() may return before the work that uses the memory is done, so a segment is
// freed only when the fence of its last free has passed. A segment whose own free the driver
// refuses is counted as leaked and forgotten.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/listeners.h"
#include "core/segment.h"
#include "core/segment_memory.h"
#include "core/strategy.h"

namespace gma {

class SegmentStore {
public:
    using Wait = HeapStrategy::Wait;

    SegmentStore(Driver& driver, int device, const Listeners& listeners,
                 std::unique_ptr<SegmentMemory> memory)
        : driver_(driver), device_(device), listeners_(listeners), memory_(std::move(memory)) {}
    SegmentStore(const SegmentStore&) = delete;
    SegmentStore& operator=(const SegmentStore&) = delete;
    // Gives all memory back. Nobody may use a block of it any more.
    ~SegmentStore();

    // One Free block is all of it. OutOfMemory without a driver call beyond the limit.
    Result<Segment*> obtain(Bytes bytes, const Request& request);
    // Records the fence that release() will ask.
    Status fence(const Segment& segment) {
        return segment.line->fences.covering(segment.freed_at, segment.line->free_count).status();
    }
    // Frees an idle segment. It is gone unless waiting failed, or its fence has not passed and with
    // Wait::No nobody waited. The status is the driver's.
    struct Released {
        bool gone;
        Status status;
    };
    Released release(Segment* segment, Wait wait);
    // What would have to be given back for a segment of `bytes` more.
    Bytes excess_bytes(Bytes bytes) const {
        const Bytes wanted = reserved_bytes_ + memory_->held_bytes(bytes);
        return wanted > limit_bytes_ ? wanted - limit_bytes_ : 0;
    }
    void set_limit(Bytes limit_bytes) { limit_bytes_ = limit_bytes; }
    Bytes limit_bytes() const { return limit_bytes_; }
    // Whether a stream that memory was asked for captures a graph: no fences and no frees then.
    bool capturing();
    void set_captures(bool captures) { captures_ = captures; }
    void poll();

    // Blocks. take() makes a Free block Used. give() makes it Free again and says so, unless it is
    // pinned: then unpin() says so for the last pin.
    void take(Block* block, bool for_graph);
    bool give(Block* block);
    // Work was queued for the idle segment's memory since its last free: a fence has to cover it.
    static void queued(Segment& segment) { segment.freed_at = ++segment.line->free_count; }
    void pin(Block* block);
    bool unpin(Block* block);
    Block* find(Address address) const {
        const auto found = used_.find(address);
        return found == used_.end() ? nullptr : found->second;
    }
    // Cuts a block that is in no index; the upper part is Free.
    Block* split(Block* block, Bytes bytes);
    // Joins a block with its next one; neither is in an index.
    void absorb_next(Block* block);

    // Every segment of a private pool, which then is {0, 0}'s.
    std::vector<Segment*> share(PoolId pool);
    // Idle segments that are free to go, the longest unused first.
    std::vector<Segment*> idle_segments() const;
    // Those that were obtained for a private pool and that no graph may use.
    std::vector<Segment*> idle_segments(PoolId pool) const;

    Bytes reserved_bytes() const { return reserved_bytes_; }
    Bytes used_bytes() const { return used_bytes_; }  // of Used and Pending blocks
    Bytes idle_bytes() const;                         // of the segments that are free to go
    std::uint64_t change_count() const { return change_count_; }
    bool captured(PoolId pool) const;
    void add_pool_bytes(std::map<PoolId, Bytes>& held) const;
    std::vector<Block*> pool_blocks(PoolId pool) const;
    // The block that holds all of [at, at + bytes), or nullptr.
    Block* block_at(Address at, Bytes bytes) const;
    StrategyCounters counters() const { return counters_; }
    void snapshot(std::vector<SegmentInfo>& segments) const;
    // `listed_count` is how many Free blocks the strategy has in its index.
    Status audit(std::size_t listed_count) const;

private:
    void tell(Action action, const Segment& segment) const;
    template <class Holds>
    std::vector<Segment*> idle_where(Holds&& holds) const;
    StreamLine& line_of(const Request& request);
    Status wait_for(Segment& segment);
    void forget(Segment* segment);
    void set_free(Block* block);
    Status audit_segment(const Segment& segment, std::size_t& free_count, std::size_t& used_count,
                         Bytes& used_bytes) const;

    Driver& driver_;
    const int device_;
    const Listeners& listeners_;
    const std::unique_ptr<SegmentMemory> memory_;
    bool captures_ = false;
    BlockPool blocks_;
    std::map<std::pair<Stream, std::uint64_t>, StreamLine> lines_;
    std::map<Address, std::unique_ptr<Segment>> segments_;
    std::unordered_map<Address, Block*> used_;  // Used and Pending
    std::unordered_set<const Block*> given_while_pinned_;
    Bytes limit_bytes_ = kMaxRequestBytes;
    Bytes reserved_bytes_ = 0;
    Bytes used_bytes_ = 0;
    std::uint64_t change_count_ = 0;
    std::uint64_t give_count_ = 0;
    std::uint64_t obtained_count_ = 0;
    StrategyCounters counters_;
};

// An invariant that does not hold: its text, and both sides.
Status broken_invariant(const char* must_hold, Bytes left, Bytes right);

}  // namespace gma
