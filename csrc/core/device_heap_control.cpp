// The device's slow doors: pools, trimming, limits, statistics, snapshots, audit.
#include <algorithm>
#include <unordered_map>

#include "core/device_heap.h"

namespace gma {
namespace {

// A slab as blocks that tile it: its objects, runs of free ones joined, and the rest at its end.
std::vector<BlockInfo> objects_of(const Slab& slab, const PendingFrees& pending) {
    std::vector<BlockInfo> blocks;
    auto add_free = [&](Address address, Bytes bytes) {
        if (bytes == 0) { return; }
        if (!blocks.empty() && blocks.back().state == BlockState::Free) {
            blocks.back().bytes += bytes;
        } else {
            blocks.push_back({address, bytes, 0, BlockState::Free});
        }
    };
    for (std::uint32_t i = 0; i < slab.object_count; ++i) {
        const Address address = slab.address_of(i);
        if (Slab::test(slab.free_bits, i)) {
            add_free(address, slab.object_bytes);
            continue;
        }
        const bool is_pending = Slab::test(slab.recorded_bits, i) && !pending.recorded(address);
        blocks.push_back({address, slab.object_bytes, slab.object_bytes - slab.unused_bytes[i],
                          is_pending ? BlockState::PendingFree : BlockState::Allocated});
    }
    const Address end = slab.address_of(slab.object_count);
    add_free(end, slab.block->end() - end);
    return blocks;
}

}  // namespace

Result<BaseAllocation> DeviceHeap::base_allocation(Address address, std::uintptr_t tagged) {
    std::lock_guard guard(lock_);
    const Block* block = block_locked(address, tagged);
    if (block == nullptr) { return Status(Code::InvalidValue, "no block starts at this address"); }
    return strategy_->base_of(block);
}

// Pins are known by their addresses: when one ends, its slab may be gone already.
Status DeviceHeap::pin(Address address, std::uintptr_t tagged, Pin change) {
    std::lock_guard guard(lock_);
    if (change == Pin::Add) {
        Block* block = block_locked(address, tagged);
        if (block == nullptr) { return {Code::InvalidValue, "no block starts at this address"}; }
        strategy_->pin(block);
        pins_.emplace(address, block);
        return {};
    }
    auto it = pins_.find(address);
    if (it == pins_.end()) { return {Code::InvalidValue, "the block is not pinned"}; }
    Block* block = it->second;
    pins_.erase(it);
    note_change();  // what was freed meanwhile is inactive from now on
    strategy_->unpin(block);
    return {};
}

// The block that is or holds what was allocated at `address`; nullptr if nothing was.
Block* DeviceHeap::block_locked(Address address, std::uintptr_t tagged) {
    if ((tagged & 1) == 0) { return live_block_locked(address); }
    const auto* slab = reinterpret_cast<Slab*>(tagged - 1);
    return live_object_locked(slab, address) ? slab->block : nullptr;
}

// Waits for the fences of what it gives back, and for nothing else.
Result<Bytes> DeviceHeap::trim(Bytes bytes) {
    std::lock_guard guard(lock_);
    note_change();
    if (capture_under_way_locked()) { return Bytes{0}; }
    if (!may_capture_locked()) { poll_locked(); }
    flush_redzones_locked();
    drain_caches_locked();
    const auto wait = may_capture_locked() ? HeapStrategy::Wait::No : HeapStrategy::Wait::Yes;
    Result<Bytes> given = strategy_->trim(bytes, wait);
    count_reserved_locked();
    return given;
}

Status DeviceHeap::reserve(Bytes bytes, Stream stream) {
    std::unique_lock lock(lock_);
    note_change();
    Result<Request> request = request_locked(bytes, stream);
    if (!request) { return request.status(); }
    Block* block = strategy_->take_cached(*request);
    if (block == nullptr) {
        Result<Block*> obtained = obtain_locked(*request, lock, bytes);
        if (!obtained) { return obtained.status(); }
        block = *obtained;
    }
    strategy_->give(block);
    count_reserved_locked();
    return {};
}

void DeviceHeap::tell_limit_locked() {
    strategy_->set_limited(limit_bytes_ < properties_.total_bytes);
    strategy_->set_limit(limit_bytes_);
}

Status DeviceHeap::set_limit(Bytes limit_bytes) {
    std::lock_guard guard(lock_);
    limit_bytes_ = std::min(limit_bytes, properties_.total_bytes);
    tell_limit_locked();
    const Bytes reserved = strategy_->reserved_bytes();
    if (reserved <= limit_bytes_) { return {}; }
    if (capture_under_way_locked()) { return {}; }
    note_change();
    flush_redzones_locked();
    drain_caches_locked();
    const auto wait = may_capture_locked() ? HeapStrategy::Wait::No : HeapStrategy::Wait::Yes;
    Result<Bytes> given = strategy_->trim(reserved - limit_bytes_, wait);
    count_reserved_locked();
    return given.status();
}

// What the card has free within the limit, and what we hold idle: it moves to where it is needed,
// or is given back for a new segment. Frees that still wait for streams are not counted.
Bytes DeviceHeap::largest_available_bytes() {
    std::lock_guard guard(lock_);
    if (!may_capture_locked()) { poll_locked(); }
    drain_caches_locked();
    const Bytes held = strategy_->reserved_bytes();
    Result<CardMemory> card = driver_.card_memory(device_);
    const Bytes growth =
        std::min(card ? card->free_bytes : 0, limit_bytes_ - std::min(held, limit_bytes_));
    return strategy_->available_bytes(growth);
}

Bytes DeviceHeap::limit() {
    std::lock_guard guard(lock_);
    return limit_bytes_;
}

DeviceStatistics DeviceHeap::statistics() {
    std::lock_guard guard(lock_);
    changed_ = false;  // before anything is read: what comes meanwhile is for the next time
    flush_redzones_locked();
    for (auto& cache : caches_) { flush_locked(*cache); }
    count_reserved_locked();
    const StrategyCounters counters = strategy_->counters();
    for (StatPool pool : {StatPool::All, StatPool::Large}) {
        const auto i = static_cast<std::size_t>(pool);
        statistics_.segment[i].set(counters.segment_count);
        statistics_.inactive_split[i].set(counters.inactive_split_count);
        statistics_.inactive_split_bytes[i].set(
            static_cast<std::int64_t>(counters.inactive_split_bytes));
    }
    statistics_.num_device_alloc = counters.device_alloc_count;
    statistics_.num_device_free = counters.device_free_count;
    statistics_.moved_chunks = counters.moved_chunk_count;
    statistics_.moved_bytes = static_cast<std::int64_t>(counters.moved_bytes);
    statistics_.stream_waits = counters.stream_wait_count;
    statistics_.leaked_handles = counters.leaked_count;
    statistics_.version = ++statistics_version_;
    DeviceStatistics copy = statistics_;
    copy.num_sync_all_streams += counters.host_wait_count;
    return copy;
}

void DeviceHeap::reset_peak_statistics() {
    static_cast<void>(statistics());
    std::lock_guard guard(lock_);
    note_change();
    for (auto it = pools_.begin(); it != pools_.end();) {
        for (Gauge& gauge : it->second.reserved_bytes) { gauge.reset_peak(); }
        const bool gone = it->second.use_count == 0 && it->second.reserved_bytes[0].current == 0;
        it = gone ? pools_.erase(it) : std::next(it);
    }
#define GMA_GAUGE(name, unit, sentence) \
    for (Gauge& gauge : statistics_.name) { gauge.reset_peak(); }
#define GMA_COUNTER(name, sentence)
#include "core/statistics.def"
#undef GMA_GAUGE
#undef GMA_COUNTER
}

void DeviceHeap::reset_accumulated_statistics() {
    static_cast<void>(statistics());
    std::lock_guard guard(lock_);
    note_change();
    for (auto& [id, pool] : pools_) {
        for (Gauge& gauge : pool.reserved_bytes) { gauge.reset_accumulated(); }
    }
#define GMA_GAUGE(name, unit, sentence) \
    for (Gauge& gauge : statistics_.name) { gauge.reset_accumulated(); }
#define GMA_COUNTER(name, sentence)
#include "core/statistics.def"
#undef GMA_GAUGE
#undef GMA_COUNTER
    statistics_.num_alloc_retries = 0;
    statistics_.num_ooms = 0;
    statistics_.num_sync_all_streams = 0;
}

std::vector<SegmentInfo> DeviceHeap::snapshot() {
    std::lock_guard guard(lock_);
    flush_redzones_locked();
    for (auto& cache : caches_) { flush_locked(*cache); }
    std::vector<SegmentInfo> segments;
    strategy_->snapshot(segments);
    std::unordered_map<Address, std::vector<BlockInfo>> slabs;
    for (auto& cache : caches_) {
        cache->for_each_slab(
            [&](const Slab* slab) { slabs.emplace(slab->base, objects_of(*slab, pending_)); });
    }
    for (SegmentInfo& segment : segments) {
        std::vector<BlockInfo> blocks;
        for (const BlockInfo& block : segment.blocks) {
            auto it = slabs.find(block.address);
            if (it == slabs.end()) {
                blocks.push_back(block);
            } else {
                blocks.insert(blocks.end(), it->second.begin(), it->second.end());
            }
        }
        segment.blocks = std::move(blocks);
    }
    return segments;
}

Strategy DeviceHeap::strategy_kind() {
    std::lock_guard guard(lock_);
    return level_ == Isolation::Off ? kind_ : Strategy::Isolated;
}

Status DeviceHeap::audit() {
    std::lock_guard guard(lock_);
    for (auto& cache : caches_) { flush_locked(*cache); }
    Status status = strategy_->audit();
    return status.ok() ? audit_ledger_locked() : status;
}

}  // namespace gma
