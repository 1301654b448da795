// The direct strategy: no caching. Each block is a segment of its own, from Driver::malloc to
// Driver::free, and a free waits until the block's stream has done what uses it.
//
// A block cannot be freed while a graph is captured, and a private pool's block must outlive the
// graphs that use it. Those stay as idle segments; a pool's own are handed out again in it.
#pragma once

#include <vector>

#include "core/segment_store.h"
#include "core/strategy.h"

namespace gma {

class DirectStrategy final : public HeapStrategy {
public:
    DirectStrategy(Driver& driver, int device, const Listeners& listeners)
        : store_(driver, device, listeners, driver_segments(driver, device)) {}

    Block* take_cached(const Request& request) override;
    Result<Block*> obtain(const Request& request, Effort effort) override;
    void give(Block* block) override;
    Block* find(Address address) override { return store_.find(address); }
    BaseAllocation base_of(const Block* block) const override {
        return {block->segment->address, block->segment->bytes};
    }
    void poll() override;
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
    void set_captures(bool captures) override { store_.set_captures(captures); }
    void pin(Block* block) override { store_.pin(block); }
    void unpin(Block* block) override;
    void set_limit(Bytes limit_bytes) override { store_.set_limit(limit_bytes); }
    Bytes reserved_bytes() const override { return store_.reserved_bytes(); }
    Bytes used_bytes() const override { return store_.used_bytes(); }
    Bytes largest_free_bytes() const override;
    Bytes available_bytes(Bytes growth_bytes) const override {
        return round_down(growth_bytes + store_.idle_bytes(), kUnitBytes);
    }
    StrategyCounters counters() const override { return store_.counters(); }
    void snapshot(std::vector<SegmentInfo>& segments) const override { store_.snapshot(segments); }
    Status audit() const override { return store_.audit(idle_.size()); }

private:
    void set_idle(Segment* segment);
    Result<Bytes> release_idle(Bytes bytes, Wait wait, PoolId pool = {});

    SegmentStore store_;
    std::vector<Segment*> idle_;  // could not be given back yet
};

}  // namespace gma
