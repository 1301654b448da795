// The strategy of the levels `tensor` and `strict`: each block is a segment of GuardedMemory. What
// is freed is checked and filled in its stream's order, waits for the fence of that, and goes:
//
//   Used -> give() -> Free, swept, waiting -> its fence passes -> unmapped, its window retired
//
// strict: the host waits at once. tensor: only when more waits than may (allowance_bytes()), since
// a host far ahead of its card would hold the memory of many steps; or when memory is short.
//
// Memory that a graph may use stays mapped until its private pool is released: a freed block of it
// is idle, and handed out again in its pool for a request of its size.
#pragma once

#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/guarded_memory.h"
#include "core/segment_store.h"
#include "core/strategy.h"

namespace gma {

class GuardedStrategy final : public HeapStrategy {
public:
    GuardedStrategy(Driver& driver, int device, DeviceProperties properties, const Options& options,
                    Isolation level, const Listeners& listeners, Ledger& ledger);
    // What was queued for its memory is done before that is unmapped.
    ~GuardedStrategy() override {
        static_cast<void>(finish_waiting(kMaxRequestBytes));
        memory_.collect_looks(true);
    }

    Block* take_cached(const Request& request) override;
    Result<Block*> obtain(const Request& request, Effort effort) override;
    void give(Block* block) override;
    Block* find(Address address) override { return store_.find(address); }
    BaseAllocation base_of(const Block* block) const override {
        return memory_.pages(block->segment->address);
    }
    ByteRange window_of(const Block* block) const override {
        return memory_.window(block->segment->address);
    }
    std::vector<ByteRange> gaps_of(const Block* block) const override {
        return memory_.gaps(block->segment->address);
    }
    // Also of checks that were queued when handles were used again.
    void poll() override;
    void settle() override {
        memory_.collect_looks(true);
        memory_.settle();
    }
    Result<Bytes> trim(Bytes bytes, Wait wait) override;
    void release_pool(PoolId pool) override;
    Result<Bytes> trim_pool(PoolId pool, Wait wait) override;
    bool captured(PoolId pool) const override { return store_.captured(pool); }
    void add_pool_bytes(std::map<PoolId, Bytes>& held) const override {
        store_.add_pool_bytes(held);
    }
    std::uint64_t layout_count() const override { return store_.change_count(); }
    std::vector<Block*> pool_blocks(PoolId pool) const override { return store_.pool_blocks(pool); }
    Status check_place(const Request& request) const override;
    Result<bool> fill_place(const Request& request, Effort effort) override;
    Block* take_at(PoolId pool, Address at, Bytes bytes) override;
    void set_captures(bool captures) override {
        if (captures) { memory_.settle(); }
        store_.set_captures(captures);
    }
    void pin(Block* block) override { store_.pin(block); }
    void unpin(Block* block) override;
    void set_limit(Bytes limit_bytes) override;
    Bytes reserved_bytes() const override {
        return memory_.in_use_bytes() + memory_.cached_bytes() + memory_.stuck_bytes();
    }
    Bytes used_bytes() const override { return store_.used_bytes(); }
    Bytes largest_free_bytes() const override { return memory_.cached_bytes(); }
    Bytes available_bytes(Bytes growth_bytes) const override;
    StrategyCounters counters() const override;
    void snapshot(std::vector<SegmentInfo>& segments) const override;
    Status audit() const override;

private:
    // More may wait for its fences than this share of what is used.
    static constexpr Bytes kWaitingShare = 4;
    static constexpr Bytes kWaitingBytes = 256_MiB;
    // A free does not ask for the fences of so few of its stream: a question is 0.8 us.
    static constexpr std::size_t kUnaskedCount = 4;

    // Of what a graph may use: pool, stream with its id, and bytes of the block.
    using IdleKey = std::tuple<PoolId, Stream, std::uint64_t, Bytes>;
    static IdleKey key_of(const Segment& segment);

    Block* take(Segment* segment, bool for_graph);
    void freed(Segment* segment);
    void retire(Segment* segment);
    bool stays(const Segment& segment) const;
    // What a block leaves of its pages: its gaps, and how many there are.
    std::pair<Bytes, std::int64_t> split_of(const Segment& segment) const;
    Result<Block*> open(const Request& request);
    // The block of the line that waits the longest; nullptr if none does.
    Segment* oldest() const;
    Result<bool> finish(Segment* segment, Wait wait);
    Status finish_passed(std::deque<Segment*>& line);
    Result<Bytes> finish_waiting(Bytes bytes);
    Bytes retire_deferred(PoolId pool);
    Bytes allowance_bytes() const;
    Status audit_split() const;

    const bool waits_at_free_;
    GuardedMemory& memory_;  // the store's
    SegmentStore store_;
    std::map<const StreamLine*, std::deque<Segment*>> waiting_;  // in the order of their frees
    Bytes waiting_bytes_ = 0;
    std::multimap<IdleKey, Segment*> idle_;  // of graphs
    std::vector<Segment*> deferred_;         // freed while one was captured
    Bytes split_bytes_ = 0;
    std::int64_t split_count_ = 0;
};

}  // namespace gma
