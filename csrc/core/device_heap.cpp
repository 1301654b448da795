#include "core/device_heap.h"

#include <algorithm>

#include "base/format.h"
#include "core/direct_strategy.h"
#include "core/paged_strategy.h"
#include "core/split_strategy.h"
#include "core/thread_registry.h"

namespace gma {
namespace {

Status recorded_too_late(Address address) {
    return {Code::InvalidValue,
            "record_stream of address " + hex_text(address) +
                ", where no tensor is allocated.\nThe tensor that was there is freed already, or "
                "none begins there.\nRecord streams while the tensor is alive, by the pointer that "
                "its allocation returned."};
}

}  // namespace

DeviceHeap::DeviceHeap(Driver& driver, int device, DeviceProperties properties,
                       const Options& options, AddressMap& addresses, Listeners& listeners,
                       const Regions& regions)
    : driver_(driver),
      device_(device),
      properties_(properties),
      options_(options),
      addresses_(addresses),
      listeners_(listeners),
      id_(next_heap_id()),
      regions_(regions),
      level_(isolation_of(options)),
      redzone_bytes_(options.redzone_bytes),
      raises_(options.on_violation == "raise"),
      kind_(strategy_of(options)),
      ledger_(device),
      pending_(driver, device),
      limit_bytes_(options.limit_mb == 0 ? properties.total_bytes : options.limit_mb * 1_MiB) {
    if (kind_ == Strategy::Paged && properties.page_bytes == 0) { kind_ = Strategy::Split; }
    strategy_ = std::make_unique<PooledStrategy>(driver_, device_, options_, listeners_,
                                                 make_strategy(kind_));
    tell_limit_locked();
    update_small_path_locked();
    register_heap(this);
}

DeviceHeap::~DeviceHeap() {
    unregister_heap(this);
    redzones_.collect(true);
    for (auto& cache : caches_) {
        cache->for_each_slab([](Slab* slab) { delete slab; });
    }
}

std::unique_ptr<HeapStrategy> DeviceHeap::make_strategy(Strategy kind) {
    switch (kind) {
        case Strategy::Split:
            return std::make_unique<SplitStrategy>(driver_, device_, options_, listeners_);
        case Strategy::Direct:
            return std::make_unique<DirectStrategy>(driver_, device_, listeners_);
        case Strategy::Paged:
        case Strategy::Isolated:
            break;
    }
    return make_isolated(level_, PoolId{});
}

Result<Address> DeviceHeap::allocate(Bytes bytes, Stream stream) {
    const bool in_region = regions_.any() && regions_.current() != Isolation::Off;
    if (with_redzone(bytes, level_) <= kSmallMaxBytes && !in_region &&
        small_path_open_.load(std::memory_order_relaxed)) {
        return allocate_small(bytes, stream);
    }
    return allocate_large(bytes, stream);
}

Result<Request> DeviceHeap::request_locked(Bytes bytes, Stream stream) {
    Request request;
    request.requested_bytes = bytes;
    request.stream = stream;
    const bool captures = may_capture_locked() && captures_locked(stream);
    request.capturing = captures || capture_count_ > 0;
    request.for_graph = captures;
    if (!routes_.empty()) {
        request.pool = pool_for_locked(stream);
        request.capturing |= others_capture_locked(stream, request.pool);
    }
    if (request.pool == PoolId{} && regions_.any()) {
        const Isolation level = regions_.current();
        if (level != Isolation::Off && level != level_) { request.pool = region_pool(level); }
        if (!regions_.any()) { update_small_path_locked(); }  // the last one's thread is gone
    }
    request.bytes = request_bytes_locked(bytes, request.pool);
    request.may_borrow = !request.capturing && request.pool == PoolId{};
    // To ask a capturing stream for its id would end the capture: it goes by its handle.
    if (stream != nullptr && captures) {
        const auto it = pool_stream_ids_.find(stream);
        if (request.pool != PoolId{} && it != pool_stream_ids_.end()) {
            request.stream_id = it->second;
        }
    } else if (stream != nullptr) {
        Result<std::uint64_t> id = driver_.stream_id(device_, stream);
        if (!id) { return id.status(); }
        request.stream_id = *id;
        if (request.pool != PoolId{}) { pool_stream_ids_[stream] = *id; }
    }
    return request;
}

// One that does not answer is taken for one that does.
bool DeviceHeap::captures_locked(Stream stream) {
    const Result<bool> capturing = driver_.capturing(device_, stream);
    return !capturing || *capturing;
}

// Whether a stream that a pool was begun for captures: what a capture forbids is forbidden to all.
bool DeviceHeap::others_capture_locked(Stream stream, PoolId pool) {
    if (pool != PoolId{} &&
        std::find(pool_streams_.begin(), pool_streams_.end(), stream) == pool_streams_.end()) {
        pool_streams_.push_back(stream);
    }
    return std::any_of(pool_streams_.begin(), pool_streams_.end(),
                       [this](Stream asked) { return captures_locked(asked); });
}

PoolId DeviceHeap::pool_for_locked(Stream stream) const {
    for (auto it = routes_.rbegin(); it != routes_.rend(); ++it) {
        if (it->filter(stream)) { return it->pool; }
    }
    return {};
}

Result<Address> DeviceHeap::allocate_large(Bytes bytes, Stream stream) {
    // For what this thread will park; without one nothing is parked.
    if (small_path_open_.load(std::memory_order_relaxed)) {
        static_cast<void>(borrow_cache(stream));
    }
    std::unique_lock lock(lock_);
    flush_for_request_locked();
    Result<Request> request = request_locked(bytes, stream);
    if (!request) { return request.status(); }
    if (!pending_.empty() && !request->capturing) { poll_locked(); }
    if (redzones_.checking() && !request->capturing) { redzones_.collect(false); }
    if (Status status = raise_violation_locked(); !status.ok()) { return status; }
    return serve_large_locked(*request, lock, bytes);
}

Result<Address> DeviceHeap::serve_large_locked(const Request& request,
                                               std::unique_lock<std::mutex>& lock,
                                               Bytes requested_bytes) {
    Block* block = strategy_->take_cached(request);
    if (block == nullptr) {
        Result<Block*> obtained = obtain_locked(request, lock, requested_bytes);
        count_reserved_locked();
        if (!obtained) { return obtained.status(); }
        block = *obtained;
    }
    if (keep_no_slabs_.load(std::memory_order_relaxed)) { keep_no_slabs_ = false; }
    block->set_requested(requested_bytes);
    count_large_locked(block, 1);
    update_parking_locked();
    note_allocated_locked(block, request.pool);
    return block->address;
}

void DeviceHeap::update_parking_locked() {
    const auto parked_at_most = static_cast<std::int64_t>(caches_.size());
    // Frees that wait for other streams are asked for at each request, which takes the lock.
    const bool open = fast_path_open_.load(std::memory_order_relaxed) && pending_.empty() &&
                      (!strategy_->disturbed() || large_live_count_ > parked_at_most);
    parking_open_.store(open, std::memory_order_relaxed);
}

Status DeviceHeap::free_large(Address address, EventSink* observer) {
    std::lock_guard guard(lock_);
    flush_own_locked();
    Block* const block = live_block_locked(address);
    if (block == nullptr || block->slab != nullptr) { return refuse_free_locked(address); }
    update_parking_locked();
    const bool may_park =
        parking_open_.load(std::memory_order_relaxed) && !block->recorded && block->pin_count == 0;
    if (may_park && block->has_free_neighbour() && block->arena != nullptr &&
        block->arena->would_find(block)) {
        block->set_found_at(block->arena->layout());
    }
    if (may_park && park(block, observer)) { return {}; }
    if (observer != nullptr) { observer->note(free_record(*block)); }
    finish_large_free_locked(block);
    return {};
}

void DeviceHeap::finish_large_free_locked(Block* block) {
    block->set_parked(false);
    count_large_locked(block, -1);
    update_parking_locked();
    note_freed_locked(block->address);
    if (exports_.end(block->address)) { strategy_->unpin(block); }
    const PendingFree pending{block, nullptr, block->address, block->bytes, 0};
    if (block->recorded && waits_at_free_locked(block->address)) {
        ++statistics_.num_sync_all_streams;
        if (pending_.finish_uses(block->address).ok()) {
            block->recorded = false;
            note_completed(pending);
        }
    }
    if (block->recorded) {
        const auto defer = deferral_locked();
        Result<bool> complete = pending_.add(pending, defer);
        if (complete && !*complete) {
            strategy_->set_pending(block);
            settle_locked();
            update_parking_locked();
            return;
        }
        note_completed(pending);
    }
    finish_free_locked(pending);
}

// Allocated as far as callers know.
Block* DeviceHeap::live_block_locked(Address address) {
    Block* const block = strategy_->find(address);
    const bool live = block != nullptr && block->kind == TileKind::Used && !block->is_parked();
    return live ? block : nullptr;
}

void DeviceHeap::complete_locked(const std::vector<PendingFree>& done) {
    for (const PendingFree& free : done) {
        note_completed(free);
        finish_free_locked(free);
    }
}

void DeviceHeap::give_locked(Block* block) {
    // A region's strategy has not met the streams that capture.
    const bool tells = capture_count_ == 0 && may_capture_locked() && capture_under_way_locked();
    if (tells) { strategy_->set_captures(true); }
    strategy_->give(block);
    if (tells) { strategy_->set_captures(false); }
    if (strategy_->reserved_bytes() > limit_bytes_ && !may_capture_locked()) {
        // The limit was lowered below what was live: what is freed above it goes back.
        static_cast<void>(
            strategy_->trim(strategy_->reserved_bytes() - limit_bytes_, HeapStrategy::Wait::Ask));
    }
    count_reserved_locked();
    settle_locked();
}

// When nothing is live any more, memory that has moved can go home (Note [Homes]): slabs must not
// keep it, and fences must tell when the last work is done.
void DeviceHeap::settle_locked() {
    if (!strategy_->disturbed() ||
        strategy_->used_bytes() != slab_bytes_ + pending_.large_bytes() + redzones_.large_bytes()) {
        return;
    }
    keep_no_slabs_ = true;
    drain_caches_locked();
    strategy_->fence_everything();
}

void DeviceHeap::poll_locked() { complete_locked(pending_.poll()); }

Status DeviceHeap::record_stream(Address address, std::uintptr_t tagged, Stream stream) {
    std::lock_guard guard(lock_);
    if ((tagged & 1) != 0) {
        auto* slab = reinterpret_cast<Slab*>(tagged - 1);
        if (slab->cache->key().stream == stream) { return {}; }
        if (!live_object_locked(slab, address) ||
            slab->cache->set_recorded(slab, address) == ThreadCache::Recording::NotAllocated) {
            return recorded_too_late(address);
        }
        Status status = pending_.record(address, stream, deferral_locked());
        if (!pending_.recorded(address)) { slab->cache->clear_recorded(slab, address); }
        return status;
    }
    Block* block = live_block_locked(address);
    if (block == nullptr) { return recorded_too_late(address); }
    if (block->stream() == stream) { return {}; }
    block->recorded = true;
    return pending_.record(address, stream, deferral_locked());
}

bool DeviceHeap::owns(Address address) {
    std::lock_guard guard(lock_);
    return strategy_->find(address) != nullptr;
}

}  // namespace gma
