// The device's private pools: their uses, their memory, and what captures do to it.
#include <algorithm>
#include <utility>

#include "core/device_heap.h"

namespace gma {

bool DeviceHeap::pool_in_use_locked(PoolId pool) const {
    const auto it = pools_.find(pool);
    return it != pools_.end() && it->second.use_count > 0;
}

Status DeviceHeap::begin_pool(PoolId pool, std::function<bool(Stream)> filter) {
    std::lock_guard guard(lock_);
    note_change();  // a pool is listed from its first use on
    routes_.push_back({pool, std::move(filter)});
    ++pools_[pool].use_count;
    strategy_->begin_pool(pool);
    has_pools_ = true;
    update_small_path_locked();
    return {};
}

Status DeviceHeap::end_pool(PoolId pool) {
    std::lock_guard guard(lock_);
    auto it = std::find_if(routes_.rbegin(), routes_.rend(),
                           [&](const Route& route) { return route.pool == pool; });
    if (it == routes_.rend()) { return {Code::InvalidValue, "this pool was not begun"}; }
    routes_.erase(std::next(it).base());
    if (routes_.empty()) { pool_streams_.clear(); }
    resume_locked();
    return {};
}

Status DeviceHeap::retain_pool(PoolId pool, std::shared_ptr<SegmentProvider> provider) {
    std::lock_guard guard(lock_);
    if (pool == PoolId{}) { return {Code::InvalidValue, "{0, 0} is the default pool"}; }
    if (provider != nullptr && pool_in_use_locked(pool)) {
        return {Code::InvalidValue,
                "the pool has its memory already: name a provider when it is made"};
    }
    if (provider != nullptr) {
        strategy_->add_provider(pool, std::move(provider));
    } else {
        strategy_->begin_pool(pool);
    }
    note_change();
    ++pools_[pool].use_count;
    has_pools_ = true;
    return {};
}

// Graphs may share a pool. Each began it and releases it; the last one gives its memory free.
Status DeviceHeap::release_pool(PoolId pool) {
    std::lock_guard guard(lock_);
    if (auto it = pools_.find(pool); it != pools_.end() && it->second.use_count > 0) {
        if (--it->second.use_count > 0) { return {}; }
        it->second.use_on_oom = false;
    }
    note_change();
    strategy_->release_pool(pool);
    count_reserved_locked();
    return {};
}

std::uint64_t DeviceHeap::pool_use_count(PoolId pool) {
    std::lock_guard guard(lock_);
    const auto it = pools_.find(pool);
    return it == pools_.end() ? 0 : it->second.use_count;
}

Status DeviceHeap::set_pool_use_on_oom(PoolId pool, bool use) {
    std::lock_guard guard(lock_);
    if (!pool_in_use_locked(pool)) { return {Code::InvalidValue, "there is no such pool"}; }
    pools_[pool].use_on_oom = use;
    return {};
}

Status DeviceHeap::set_pool_no_split(PoolId pool) {
    std::lock_guard guard(lock_);
    if (!pool_in_use_locked(pool)) { return {Code::InvalidValue, "there is no such pool"}; }
    strategy_->set_no_split(pool);
    return {};
}

// What a pool that lends its memory has free for the same stream, so that stream order goes on.
// Not for slabs (aligned): their objects would be the pool's. Not what a graph may use.
Block* DeviceHeap::borrow_from_pools_locked(const Request& request) {
    if (request.pool != PoolId{} || request.at != 0 || request.alignment > kUnitBytes) {
        return nullptr;
    }
    for (const auto& [id, pool] : pools_) {
        if (!pool.use_on_oom || strategy_->captured(id)) { continue; }
        Request lent = request;
        lent.pool = id;
        if (Block* block = strategy_->take_cached(lent); block != nullptr) { return block; }
    }
    return nullptr;
}

// PyTorch's emptyCache(id) gives back what a pool without uses has left. Here also a pool in use
// gives back its idle memory, so long as no graph was captured with it: that one finds its
// addresses filled again when it needs them, but nobody can tell a graph.
Result<Bytes> DeviceHeap::trim_pool(PoolId pool) {
    if (pool == PoolId{}) { return trim(kMaxRequestBytes); }
    std::lock_guard guard(lock_);
    note_change();
    if (capture_under_way_locked()) { return Bytes{0}; }
    auto wait = HeapStrategy::Wait::No;
    if (!may_capture_locked()) {
        if (Status status = finish_pending_locked(pool); !status.ok()) { return status; }
        wait = HeapStrategy::Wait::Yes;
    }
    Result<Bytes> given = strategy_->trim_pool(pool, wait);
    count_reserved_locked();
    return given;
}

// The host waits for the streams that blocks of the pool were recorded on and freed.
Status DeviceHeap::finish_pending_locked(PoolId pool) {
    poll_locked();
    while (!pending_.empty()) {
        const std::vector<Block*> blocks = strategy_->pool_blocks(pool);
        if (std::none_of(blocks.begin(), blocks.end(), [](const Block* block) {
                return block->kind == TileKind::Pending && !block->given_while_pinned;
            })) {
            break;
        }
        ++statistics_.num_sync_all_streams;
        Result<std::vector<PendingFree>> done = pending_.wait_oldest();
        if (!done) { return done.status(); }
        if (done->empty()) { break; }
        complete_locked(*done);
    }
    return {};
}

void DeviceHeap::count_pools_locked() {
    const std::uint64_t layout = strategy_->layout_count();
    if (layout == counted_layout_) { return; }
    counted_layout_ = layout;
    std::map<PoolId, Bytes> held;
    strategy_->add_pool_bytes(held);
    for (auto& [id, pool] : pools_) {
        const auto it = held.find(id);
        const auto bytes = static_cast<std::int64_t>(it == held.end() ? 0 : it->second);
        for (StatPool kind : {StatPool::All, StatPool::Large}) {
            pool.reserved_bytes[static_cast<std::size_t>(kind)].set(bytes);
        }
    }
}

std::vector<PoolBytes> DeviceHeap::pool_bytes() {
    std::lock_guard guard(lock_);
    count_reserved_locked();
    std::vector<PoolBytes> all;
    for (const auto& [id, pool] : pools_) { all.push_back({id, pool.reserved_bytes}); }
    return all;
}

// Without the caller's word, streams that a pool was begun for are asked.
bool DeviceHeap::capture_under_way_locked() {
    return capture_count_ > 0 ||
           std::any_of(pool_streams_.begin(), pool_streams_.end(),
                       [this](Stream stream) { return captures_locked(stream); });
}

void DeviceHeap::begin_capture() {
    std::lock_guard guard(lock_);
    ++capture_count_;
    strategy_->set_captures(true);
    update_small_path_locked();
}

void DeviceHeap::end_capture() {
    std::lock_guard guard(lock_);
    if (capture_count_ == 0 || --capture_count_ > 0) { return; }
    strategy_->set_captures(false);
    resume_locked();
}

// What had to wait for the end of captures goes on, when the last one is over.
void DeviceHeap::resume_locked() {
    if (may_capture_locked()) { return; }
    update_small_path_locked();
    pending_.resume();
}

}  // namespace gma
