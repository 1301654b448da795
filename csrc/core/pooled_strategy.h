// A device's strategy, and beside it one more for each private pool whose memory comes from a
// provider (another allocator): that one cuts the provider's segments as SplitStrategy does. And
// one for each level of isolation that a region asks for, as a pool that is never released.
//
//   reserved_bytes() == the strategy's + sum of the pools', and all of them share one limit
//
// A request goes where its pool is, a block back to where it came from. A pool that was released
// stays until its last block is freed and its last segment given back, and its provider with it;
// meanwhile its id may name a new pool.
#pragma once

#include <memory>
#include <vector>

#include "core/listeners.h"
#include "core/options.h"
#include "core/split_strategy.h"
#include "core/strategy.h"

namespace gma {

class PooledStrategy final : public HeapStrategy {
public:
    PooledStrategy(Driver& driver, int device, const Options& options, const Listeners& listeners,
                   std::unique_ptr<HeapStrategy> own)
        : driver_(driver),
          device_(device),
          options_(options),
          listeners_(listeners),
          own_(std::move(own)) {}

    // Nothing was obtained from the strategy before: another one takes its place.
    void replace_own(std::unique_ptr<HeapStrategy> own);
    void add_provider(PoolId pool, std::shared_ptr<SegmentProvider> provider);
    void add_region(PoolId pool, std::unique_ptr<HeapStrategy> strategy);
    bool provides(PoolId pool) const { return provided(pool) != nullptr; }

    Block* take_cached(const Request& request) override {
        return providers_.empty() ? own_->take_cached(request)
                                  : at(request.pool).take_cached(request);
    }
    Result<Block*> obtain(const Request& request, Effort effort) override;
    void give(Block* block) override;
    void set_pending(Block* block) override { of(block).set_pending(block); }
    Block* find(Address address) override;
    BaseAllocation base_of(const Block* block) const override { return of(block).base_of(block); }
    ByteRange window_of(const Block* block) const override { return of(block).window_of(block); }
    std::vector<ByteRange> gaps_of(const Block* block) const override {
        return of(block).gaps_of(block);
    }
    void settle() override {
        own_->settle();
        for (const Provided& entry : providers_) { entry.strategy->settle(); }
    }
    void add_patterned(std::vector<ByteRange>& ranges) const override {
        own_->add_patterned(ranges);
        for (const Provided& entry : providers_) { entry.strategy->add_patterned(ranges); }
    }
    void poll() override;
    Result<Bytes> trim(Bytes bytes, Wait wait) override;
    void release_pool(PoolId pool) override;
    void begin_pool(PoolId pool) override { at(pool).begin_pool(pool); }
    void set_no_split(PoolId pool) override { at(pool).set_no_split(pool); }
    Result<Bytes> trim_pool(PoolId pool, Wait wait) override;
    bool captured(PoolId pool) const override { return at(pool).captured(pool); }
    void add_pool_bytes(std::map<PoolId, Bytes>& held) const override;
    std::uint64_t layout_count() const override;
    std::vector<Block*> pool_blocks(PoolId pool) const override {
        return at(pool).pool_blocks(pool);
    }
    Status check_place(const Request& request) const override {
        return at(request.pool).check_place(request);
    }
    Result<bool> fill_place(const Request& request, Effort effort) override;
    Block* take_at(PoolId pool, Address at_address, Bytes bytes) override {
        return at(pool).take_at(pool, at_address, bytes);
    }
    void set_captures(bool captures) override;
    void pin(Block* block) override { of(block).pin(block); }
    void unpin(Block* block) override;
    void set_limit(Bytes limit_bytes) override;
    void set_limited(bool limited) override;
    Bytes reserved_bytes() const override { return own_->reserved_bytes() + provided_bytes_; }
    Bytes used_bytes() const override;
    bool disturbed() const override { return own_->disturbed(); }
    void fence_everything() override { own_->fence_everything(); }
    Bytes largest_free_bytes() const override { return own_->largest_free_bytes(); }
    Bytes available_bytes(Bytes growth_bytes) const override {
        return own_->available_bytes(growth_bytes);
    }
    StrategyCounters counters() const override;
    void snapshot(std::vector<SegmentInfo>& segments) const override;
    Status audit() const override;

private:
    struct Provided {
        PoolId pool;
        std::unique_ptr<HeapStrategy> strategy;
        bool is_region = false;
        bool released = false;
    };
    using Providers = std::vector<Provided>;

    HeapStrategy* provided(PoolId pool) const;
    HeapStrategy& at(PoolId pool) const {
        HeapStrategy* found = providers_.empty() ? nullptr : provided(pool);
        return found != nullptr ? *found : *own_;
    }
    HeapStrategy& of(const Block* block) const;
    Result<Bytes> trim_regions(Wait wait);
    Result<Block*> obtain_own(const Request& request, Effort effort);
    Result<Block*> obtain_provided(HeapStrategy& strategy, const Request& request, Effort effort);
    void settle_released();
    void share_limit();

    Driver& driver_;
    const int device_;
    const Options& options_;
    const Listeners& listeners_;
    std::unique_ptr<HeapStrategy> own_;
    Providers providers_;
    Bytes limit_bytes_ = kMaxRequestBytes;
    Bytes provided_bytes_ = 0;  // reserved by the pools with providers
    bool limited_ = false;
    bool captures_ = false;
    std::uint64_t gone_layout_count_ = 0;  // of pools that are gone
    StrategyCounters gone_;
};

}  // namespace gma
