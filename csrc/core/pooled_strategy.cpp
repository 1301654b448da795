#include "core/pooled_strategy.h"

#include <algorithm>
#include <utility>

#include "core/arena.h"

namespace gma {

void PooledStrategy::replace_own(std::unique_ptr<HeapStrategy> own) {
    gone_layout_count_ += own_->layout_count() + 1;
    own_ = std::move(own);
    own_->set_captures(captures_);
    own_->set_limited(limited_);
    share_limit();
}

void PooledStrategy::add_provider(PoolId pool, std::shared_ptr<SegmentProvider> provider) {
    auto strategy = std::make_unique<SplitStrategy>(driver_, device_, options_, listeners_,
                                                    std::move(provider));
    strategy->set_captures(captures_);
    strategy->set_limited(limited_);
    providers_.push_back({pool, std::move(strategy), false});
    share_limit();
}

void PooledStrategy::add_region(PoolId pool, std::unique_ptr<HeapStrategy> strategy) {
    strategy->set_captures(captures_);
    strategy->set_limited(limited_);
    providers_.push_back({pool, std::move(strategy), true});
    share_limit();
}

HeapStrategy* PooledStrategy::provided(PoolId pool) const {
    for (const Provided& entry : providers_) {
        if (entry.pool == pool && !entry.released) { return entry.strategy.get(); }
    }
    return nullptr;
}

HeapStrategy& PooledStrategy::of(const Block* block) const {
    for (const Provided& entry : providers_) {
        // Arenas are found by whoever asks; their pools tell whose they are.
        const bool is_its = block->arena != nullptr
                                ? entry.is_region && entry.pool == block->arena->key().pool
                                : entry.strategy->find(block->address) == block;
        if (is_its) { return *entry.strategy; }
    }
    return *own_;
}

Block* PooledStrategy::find(Address address) {
    Block* block = own_->find(address);
    for (auto it = providers_.begin(); block == nullptr && it != providers_.end(); ++it) {
        block = it->strategy->find(address);
    }
    return block;
}

// What others hold is no room for one: each gets the limit less what the others have.
void PooledStrategy::share_limit() {
    provided_bytes_ = 0;
    for (const Provided& entry : providers_) {
        provided_bytes_ += entry.strategy->reserved_bytes();
    }
    own_->set_limit(limit_bytes_ - std::min(limit_bytes_, provided_bytes_));
    for (const Provided& entry : providers_) {
        const Bytes others = reserved_bytes() - entry.strategy->reserved_bytes();
        entry.strategy->set_limit(limit_bytes_ - std::min(limit_bytes_, others));
    }
}

void PooledStrategy::set_limit(Bytes limit_bytes) {
    limit_bytes_ = limit_bytes;
    share_limit();
}

void PooledStrategy::set_limited(bool limited) {
    limited_ = limited;
    own_->set_limited(limited);
    for (const Provided& entry : providers_) { entry.strategy->set_limited(limited); }
}

Result<Block*> PooledStrategy::obtain(const Request& request, Effort effort) {
    HeapStrategy* pool = providers_.empty() ? nullptr : provided(request.pool);
    if (pool == nullptr) { return obtain_own(request, effort); }
    share_limit();
    Result<Block*> block = obtain_provided(*pool, request, effort);
    share_limit();
    return block;
}

// What regions keep for their next blocks makes room too.
Result<Block*> PooledStrategy::obtain_own(const Request& request, Effort effort) {
    Result<Block*> block = own_->obtain(request, effort);
    if (!block || *block != nullptr || effort < Effort::Limit || request.capturing) {
        return block;
    }
    Result<Bytes> given = trim_regions(effort == Effort::HostWait ? Wait::Yes : Wait::Ask);
    if (!given) { return given.status(); }
    if (*given == 0) { return nullptr; }
    share_limit();
    return own_->obtain(request, effort);
}

Result<Bytes> PooledStrategy::trim_regions(Wait wait) {
    Bytes sum = 0;
    for (const Provided& entry : providers_) {
        if (!entry.is_region) { continue; }
        Result<Bytes> given = entry.strategy->trim(kMaxRequestBytes, wait);
        if (!given) { return given; }
        sum += *given;
    }
    return sum;
}

// The provider's memory lies on the same card: what is idle here makes room for it.
Result<Block*> PooledStrategy::obtain_provided(HeapStrategy& strategy, const Request& request,
                                               Effort effort) {
    Result<Block*> block = strategy.obtain(request, effort);
    if (!block || *block != nullptr || effort < Effort::Limit || request.capturing) {
        return block;
    }
    const Wait wait = effort == Effort::HostWait ? Wait::Yes : Wait::Ask;
    Result<Bytes> given = own_->trim(kMaxRequestBytes, wait);
    if (!given) { return given.status(); }
    if (*given == 0) { return nullptr; }
    share_limit();
    return strategy.obtain(request, effort);
}

Result<bool> PooledStrategy::fill_place(const Request& request, Effort effort) {
    return at(request.pool).fill_place(request, effort);
}

void PooledStrategy::give(Block* block) {
    if (providers_.empty()) { return own_->give(block); }
    of(block).give(block);
    settle_released();
}

void PooledStrategy::unpin(Block* block) {
    of(block).unpin(block);
    settle_released();
}

// Released pools give back what their blocks have left, and go when there is nothing left. What
// work that still runs may use is asked for again at the next opportunity.
void PooledStrategy::settle_released() {
    if (captures_) { return; }
    for (auto it = providers_.begin(); it != providers_.end();) {
        if (it->released) { static_cast<void>(it->strategy->trim(kMaxRequestBytes, Wait::Ask)); }
        if (!it->released || it->strategy->reserved_bytes() > 0) {
            ++it;
            continue;
        }
        const StrategyCounters counters = it->strategy->counters();
        gone_.device_alloc_count += counters.device_alloc_count;
        gone_.device_free_count += counters.device_free_count;
        gone_.host_wait_count += counters.host_wait_count;
        gone_layout_count_ += it->strategy->layout_count() + 1;
        it = providers_.erase(it);
    }
    share_limit();
}

void PooledStrategy::poll() {
    own_->poll();
    for (const Provided& entry : providers_) { entry.strategy->poll(); }
    if (!providers_.empty()) { settle_released(); }
}

Result<Bytes> PooledStrategy::trim(Bytes bytes, Wait wait) {
    Result<Bytes> given = own_->trim(bytes, wait);
    for (const Provided& entry : providers_) {
        if (!given || *given >= bytes) { break; }
        if (!entry.released && !entry.is_region) { continue; }
        Result<Bytes> part = entry.strategy->trim(bytes - *given, wait);
        if (!part) { return part; }
        *given += *part;
    }
    if (!providers_.empty()) { settle_released(); }
    return given;
}

void PooledStrategy::release_pool(PoolId pool) {
    auto it = std::find_if(providers_.begin(), providers_.end(), [&](const Provided& entry) {
        return entry.pool == pool && !entry.released;
    });
    if (it == providers_.end()) { return own_->release_pool(pool); }
    it->strategy->release_pool(pool);
    it->released = true;
    settle_released();
}

// Also what a released pool of that id has left.
Result<Bytes> PooledStrategy::trim_pool(PoolId pool, Wait wait) {
    Result<Bytes> given = at(pool).trim_pool(pool, wait);
    for (const Provided& entry : providers_) {
        if (!given || !entry.released || entry.pool != pool) { continue; }
        Result<Bytes> part = entry.strategy->trim(kMaxRequestBytes, wait);
        if (!part) { return part; }
        *given += *part;
    }
    if (!providers_.empty()) { settle_released(); }
    return given;
}

void PooledStrategy::add_pool_bytes(std::map<PoolId, Bytes>& held) const {
    own_->add_pool_bytes(held);
    for (const Provided& entry : providers_) {
        held[entry.pool] += entry.strategy->reserved_bytes();
    }
}

std::uint64_t PooledStrategy::layout_count() const {
    std::uint64_t count = own_->layout_count() + gone_layout_count_;
    for (const Provided& entry : providers_) { count += entry.strategy->layout_count(); }
    return count;
}

void PooledStrategy::set_captures(bool captures) {
    captures_ = captures;
    own_->set_captures(captures);
    for (const Provided& entry : providers_) { entry.strategy->set_captures(captures); }
}

Bytes PooledStrategy::used_bytes() const {
    Bytes bytes = own_->used_bytes();
    for (const Provided& entry : providers_) { bytes += entry.strategy->used_bytes(); }
    return bytes;
}

StrategyCounters PooledStrategy::counters() const {
    StrategyCounters sum = own_->counters();
    auto add = [&sum](const StrategyCounters& more) {
        sum.segment_count += more.segment_count;
        sum.device_alloc_count += more.device_alloc_count;
        sum.device_free_count += more.device_free_count;
        sum.host_wait_count += more.host_wait_count;
        sum.inactive_split_count += more.inactive_split_count;
        sum.inactive_split_bytes += more.inactive_split_bytes;
        sum.leaked_count += more.leaked_count;
        sum.cached_bytes += more.cached_bytes;
        sum.waiting_bytes += more.waiting_bytes;
        sum.quarantined_address_bytes += more.quarantined_address_bytes;
        sum.unchecked_count += more.unchecked_count;
    };
    add(gone_);
    for (const Provided& entry : providers_) {
        add(entry.strategy->counters());
        if (!entry.released) { sum.private_pool_bytes += entry.strategy->reserved_bytes(); }
    }
    return sum;
}

void PooledStrategy::snapshot(std::vector<SegmentInfo>& segments) const {
    own_->snapshot(segments);
    for (const Provided& entry : providers_) {
        const std::size_t first = segments.size();
        entry.strategy->snapshot(segments);
        for (std::size_t i = first; i < segments.size(); ++i) { segments[i].pool = entry.pool; }
    }
}

Status PooledStrategy::audit() const {
    Status status = own_->audit();
    Bytes sum = 0;
    for (const Provided& entry : providers_) {
        if (!status.ok()) { return status; }
        status = entry.strategy->audit();
        sum += entry.strategy->reserved_bytes();
    }
    if (status.ok() && sum != provided_bytes_) {
        return broken_invariant("sum(provided pool bytes) == provided bytes", sum, provided_bytes_);
    }
    return status;
}

}  // namespace gma
