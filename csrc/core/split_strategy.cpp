#include "core/split_strategy.h"

#include <algorithm>
#include <utility>

namespace gma {

SplitStrategy::SplitStrategy(Driver& driver, int device, const Options& options,
                             const Listeners& listeners, std::shared_ptr<SegmentProvider> provider)
    : divisions_(
          Power2Divisions::parse(options.roundup_power2_divisions).value_or(Power2Divisions())),
      max_split_bytes_(options.max_split_size_mb == 0 ? kMaxRequestBytes
                                                      : options.max_split_size_mb * 1_MiB),
      max_rounding_bytes_(options.max_non_split_rounding_mb * 1_MiB),
      large_segment_bytes_(options.large_segment_size_mb * 1_MiB),
      garbage_threshold_(options.garbage_collection_threshold),
      store_(driver, device, listeners,
             provider == nullptr ? driver_segments(driver, device)
                                 : provided_segments(std::move(provider))) {
    if (Result<DeviceProperties> properties = driver.properties(device); properties) {
        card_bytes_ = properties->total_bytes;
    }
}

Bytes SplitStrategy::segment_bytes(Bytes block_bytes) const {
    if (block_bytes <= kSmallRequestBytes) { return kSmallSegmentBytes; }
    if (block_bytes < kOwnSegmentBytes) { return large_segment_bytes_; }
    return round_up(block_bytes, kSegmentUnitBytes);
}

SplitStrategy::PoolKey SplitStrategy::key_of(const Request& request) const {
    return {request.pool, request.stream, request.stream_id, kind_of(block_bytes(request))};
}

Block* SplitStrategy::take_cached(const Request& request) {
    if (request.at != 0) { return take_at(request.pool, request.at, request.bytes); }
    const Bytes bytes = block_bytes(request);
    large_search_count_ += kind_of(bytes) == Kind::Large;
    const auto found = free_.find(key_of(request));
    if (found == free_.end()) { return nullptr; }
    Block* block = found->second.find(bytes, kUnitBytes);
    if (block == nullptr) { return nullptr; }
    const bool oversize = block->bytes >= max_split_bytes_;
    if (oversize && bytes < max_split_bytes_) { return nullptr; }
    if (oversize && block->bytes - bytes >= max_rounding_bytes_) { return nullptr; }
    unlist(block);
    return carve(block, bytes, request.for_graph);
}

bool SplitStrategy::splits(const Block* block, Bytes bytes) const {
    const Bytes rest = block->bytes - bytes;
    if (no_split_pools_.contains(block->segment->pool)) { return false; }
    if (kind_of(bytes) == Kind::Small) { return rest >= kUnitBytes; }
    return bytes < max_split_bytes_ && rest > kSmallRequestBytes;
}

// Makes an unlisted Free block Used, cutting off what the request does not need.
Block* SplitStrategy::carve(Block* block, Bytes bytes, bool for_graph) {
    if (splits(block, bytes)) { list(store_.split(block, bytes)); }
    store_.take(block, for_graph);
    return block;
}

void SplitStrategy::list(Block* block) {
    block->segment->free_blocks->insert(block);
    block->segment->search_count = large_search_count_;
    cut_count_ += cut(block);
    cut_bytes_ += cut(block) ? block->bytes : 0;
}

// A listed block's neighbours come and go only while it is not listed.
void SplitStrategy::unlist(Block* block) {
    block->segment->free_blocks->remove(block);
    cut_count_ -= cut(block);
    cut_bytes_ -= cut(block) ? block->bytes : 0;
}

Result<Block*> SplitStrategy::obtain(const Request& request, Effort effort) {
    if (request.at != 0) { return nullptr; }
    switch (effort) {
        case Effort::Budget:
            if (!request.capturing) {
                if (Status status = collect_garbage(); !status.ok()) { return status; }
            }
            return grow(request);
        case Effort::Break: {
            if (request.capturing) { return nullptr; }
            Result<bool> released = release_oversize(request);
            if (!released) { return released.status(); }
            return *released ? grow(request) : Result<Block*>(nullptr);
        }
        case Effort::Limit:
            return grow_after_release(request, Wait::No);
        case Effort::HostWait:
            return grow_after_release(request, Wait::Yes);
        case Effort::OwnIdle:
        case Effort::PassedIdle:
        case Effort::WaitingIdle:
            break;
    }
    return nullptr;
}

Result<Block*> SplitStrategy::grow(const Request& request) {
    const Bytes bytes = block_bytes(request);
    Result<Segment*> segment = store_.obtain(segment_bytes(bytes), request);
    if (!segment) {
        if (segment.status().code() == Code::OutOfMemory) { return nullptr; }
        return segment.status();
    }
    (*segment)->free_blocks = &free_[key_of(request)];
    return carve((*segment)->first, bytes, request.for_graph);
}

void SplitStrategy::give(Block* block) {
    if (store_.give(block)) { merge(block); }
}

void SplitStrategy::unpin(Block* block) {
    if (store_.unpin(block)) { merge(block); }
}

// Joins an unlisted Free block with its Free neighbours, and lists the result.
void SplitStrategy::merge(Block* block) {
    if (block->next != nullptr && block->next->kind == TileKind::Free) {
        unlist(block->next);
        store_.absorb_next(block);
    }
    if (block->previous != nullptr && block->previous->kind == TileKind::Free) {
        block = block->previous;
        unlist(block);
        store_.absorb_next(block);
    }
    list(block);
}

// Its segments join those of their streams.
void SplitStrategy::release_pool(PoolId pool) {
    no_split_pools_.erase(pool);
    for (Segment* segment : store_.share(pool)) {
        FreeIndex* from = segment->free_blocks;
        auto at = std::find_if(free_.begin(), free_.end(),
                               [&](const auto& entry) { return &entry.second == from; });
        PoolKey key = at->first;
        key.pool = PoolId{};
        FreeIndex& to = free_[key];
        for (Block* block = segment->first; block != nullptr; block = block->next) {
            if (block->kind != TileKind::Free) { continue; }
            from->remove(block);
            to.insert(block);
        }
        segment->free_blocks = &to;
    }
    std::erase_if(free_,
                  [&](const auto& entry) { return entry.first.pool == pool && pool != PoolId{}; });
}

Bytes SplitStrategy::largest_free_bytes() const {
    Bytes largest = 0;
    for (const auto& [key, index] : free_) {
        if (key.pool == PoolId{}) { largest = std::max(largest, index.largest_bytes()); }
    }
    return largest;
}

// Idle segments go for a new one, whose size the request does not choose below kOwnSegmentBytes.
Bytes SplitStrategy::available_bytes(Bytes growth_bytes) const {
    const Bytes room = round_down(growth_bytes + store_.idle_bytes(), kSegmentUnitBytes);
    const Bytes smaller = room >= kSmallSegmentBytes ? kSmallRequestBytes : 0;
    return std::max(room >= kOwnSegmentBytes ? room : smaller, largest_free_bytes());
}

StrategyCounters SplitStrategy::counters() const {
    StrategyCounters counters = store_.counters();
    counters.inactive_split_count = cut_count_;
    counters.inactive_split_bytes = cut_bytes_;
    return counters;
}

bool SplitStrategy::on_unit(const Block* block, Address at) {
    return (at - block->segment->address) % kUnitBytes == 0;
}

// Cut out of the Free block that holds it; nothing is mapped for a place that is not there.
Block* SplitStrategy::take_at(PoolId pool, Address at, Bytes bytes) {
    Block* block = store_.block_at(at, bytes);
    if (block == nullptr || block->kind != TileKind::Free || block->segment->pool != pool ||
        !on_unit(block, at)) {
        return nullptr;
    }
    unlist(block);
    if (at > block->address) {
        Block* lower = std::exchange(block, store_.split(block, at - block->address));
        list(lower);
    }
    if (bytes < block->bytes) { list(store_.split(block, bytes)); }
    store_.take(block, false);
    return block;
}

Status SplitStrategy::check_place(const Request& request) const {
    const Block* block = store_.block_at(request.at, request.bytes);
    if (block == nullptr || block->kind != TileKind::Free || !on_unit(block, request.at)) {
        return {Code::NotSupported, "no free block holds this address and size"};
    }
    const StreamLine& line = *block->segment->line;
    if (block->segment->pool != request.pool || line.stream != request.stream ||
        line.id != request.stream_id) {
        return {Code::NotSupported, "the address is not in memory of this stream and pool"};
    }
    return {};
}

Result<bool> SplitStrategy::fill_place(const Request& request, Effort) {
    const Block* block = store_.block_at(request.at, 1);
    if (block != nullptr && block->segment->pool == request.pool && on_unit(block, request.at) &&
        request.at + request.bytes <= block->segment->address + block->segment->bytes) {
        return true;
    }
    return Status(Code::InvalidValue, "the pool has no memory at this address any more");
}

Status SplitStrategy::audit() const {
    std::size_t listed_count = 0;
    std::int64_t cut_count = 0;
    Bytes cut_bytes = 0;
    for (const auto& [key, index] : free_) {
        for (const Block* block : index) {
            if (block->kind != TileKind::Free || block->segment->free_blocks != &index) {
                return broken_invariant("a listed block is Free and listed once", block->address,
                                        0);
            }
            cut_count += cut(block);
            cut_bytes += cut(block) ? block->bytes : 0;
            const StreamLine& line = *block->segment->line;
            if (block->segment->pool != key.pool || line.stream != key.stream ||
                line.id != key.stream_id) {
                return broken_invariant("a block is listed for its stream and pool", block->address,
                                        0);
            }
        }
        listed_count += index.size();
    }
    if (cut_count != cut_count_ || cut_bytes != cut_bytes_) {
        return broken_invariant("free blocks of segments in use are counted", cut_bytes_,
                                cut_bytes);
    }
    return store_.audit(listed_count);
}

}  // namespace gma
