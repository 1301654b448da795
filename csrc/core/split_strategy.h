// The split strategy: whole driver segments, cut and merged; PyTorch's classic policy with its
// options' meanings.
//
// Requests up to 1 MiB share segments of 2 MiB, others up to 10 MiB those of large_segment_size_mb;
// larger ones get a segment of their size, rounded up to 2 MiB. Each stream and private pool has
// free blocks of both kinds, and takes the smallest that fits, the lowest address among equals.
// With max_split_size_mb, blocks from that size on are never cut: a smaller request does not take
// them, and a larger one does if less than max_non_split_rounding_mb is wasted.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "core/free_index.h"
#include "core/options.h"
#include "core/power2_divisions.h"
#include "core/segment_store.h"
#include "core/strategy.h"

namespace gma {

class SplitStrategy final : public HeapStrategy {
public:
    static constexpr Bytes kSmallRequestBytes = 1_MiB;  // at most this: the small kind
    static constexpr Bytes kSmallSegmentBytes = 2_MiB;
    static constexpr Bytes kOwnSegmentBytes = 10_MiB;  // from here a segment fits its request
    static constexpr Bytes kSegmentUnitBytes = 2_MiB;

    // With a provider: the segments of one private pool come from there.
    SplitStrategy(Driver& driver, int device, const Options& options, const Listeners& listeners,
                  std::shared_ptr<SegmentProvider> provider = nullptr);

    Block* take_cached(const Request& request) override;
    Result<Block*> obtain(const Request& request, Effort effort) override;
    void give(Block* block) override;
    Block* find(Address address) override { return store_.find(address); }
    BaseAllocation base_of(const Block* block) const override {
        return {block->segment->address, block->segment->bytes};
    }
    void poll() override { store_.poll(); }
    Result<Bytes> trim(Bytes bytes, Wait wait) override;
    void release_pool(PoolId pool) override;
    void set_no_split(PoolId pool) override { no_split_pools_.insert(pool); }
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
    Bytes available_bytes(Bytes growth_bytes) const override;
    StrategyCounters counters() const override;
    void snapshot(std::vector<SegmentInfo>& segments) const override { store_.snapshot(segments); }
    Status audit() const override;

private:
    enum class Kind : std::uint8_t { Small, Large };
    struct PoolKey {
        PoolId pool;
        Stream stream;
        std::uint64_t stream_id;
        Kind kind;
        friend auto operator<=>(const PoolKey&, const PoolKey&) = default;
    };

    static Kind kind_of(Bytes block_bytes) {
        return block_bytes <= kSmallRequestBytes ? Kind::Small : Kind::Large;
    }
    Bytes block_bytes(const Request& request) const { return divisions_.round(request.bytes); }
    Bytes segment_bytes(Bytes block_bytes) const;
    PoolKey key_of(const Request& request) const;
    bool splits(const Block* block, Bytes bytes) const;
    Block* carve(Block* block, Bytes bytes, bool for_graph);
    void merge(Block* block);
    void list(Block* block);
    void unlist(Block* block);
    static bool on_unit(const Block* block, Address at);
    static bool cut(const Block* block) {
        return block->previous != nullptr || block->next != nullptr;
    }

    // A new segment; nullptr when the limit or the card is full.
    Result<Block*> grow(const Request& request);

    // split_release.cpp
    Result<Block*> grow_after_release(const Request& request, Wait wait);
    Result<bool> release_oversize(const Request& request);
    Status collect_garbage();
    Result<Bytes> release_idle(Bytes bytes, Wait wait);
    Result<Bytes> release_all(const std::vector<Segment*>& idle, Bytes bytes, Wait wait);
    Status release(Segment* segment, Wait wait, Bytes& given_bytes);

    const Power2Divisions divisions_;
    const Bytes max_split_bytes_;
    const Bytes max_rounding_bytes_;
    const Bytes large_segment_bytes_;
    const double garbage_threshold_;
    Bytes card_bytes_ = 0;
    SegmentStore store_;
    std::map<PoolKey, FreeIndex> free_;
    std::set<PoolId> no_split_pools_;
    // Listed blocks that are not all of their segment.
    std::int64_t cut_count_ = 0;
    Bytes cut_bytes_ = 0;
    std::uint64_t large_search_count_ = 0;  // the clock of ages, as in PyTorch
};

}  // namespace gma
