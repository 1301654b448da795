#include "core/direct_strategy.h"

#include <algorithm>

namespace gma {

Block* DirectStrategy::take_cached(const Request& request) {
    if (request.at != 0) { return take_at(request.pool, request.at, request.bytes); }
    if (request.pool == PoolId{}) { return nullptr; }
    const auto fits = [&](const Segment* segment) {
        return segment->pool == request.pool && segment->bytes == request.bytes &&
               segment->line->stream == request.stream && segment->line->id == request.stream_id;
    };
    const auto found = std::find_if(idle_.begin(), idle_.end(), fits);
    if (found == idle_.end()) { return nullptr; }
    Block* block = (*found)->first;
    idle_.erase(found);
    store_.take(block, request.for_graph);
    return block;
}

Result<Block*> DirectStrategy::obtain(const Request& request, Effort effort) {
    const bool tries =
        effort == Effort::Budget || effort == Effort::Limit || effort == Effort::HostWait;
    if (!tries || request.at != 0) { return nullptr; }
    if (!idle_.empty() && !request.capturing) {
        const Wait wait = effort == Effort::HostWait ? Wait::Yes : Wait::No;
        if (Result<Bytes> given = release_idle(kMaxRequestBytes, wait); !given) {
            return given.status();
        }
    }
    Result<Segment*> segment = store_.obtain(request.bytes, request);
    if (!segment) {
        if (segment.status().code() == Code::OutOfMemory) { return nullptr; }
        return segment.status();
    }
    store_.take((*segment)->first, request.for_graph);
    return (*segment)->first;
}

void DirectStrategy::give(Block* block) {
    if (store_.give(block)) { set_idle(block->segment); }
}

void DirectStrategy::unpin(Block* block) {
    if (store_.unpin(block)) { set_idle(block->segment); }
}

// What the driver refuses now stays listed and is tried again.
void DirectStrategy::set_idle(Segment* segment) {
    idle_.push_back(segment);
    static_cast<void>(release_idle(kMaxRequestBytes, Wait::Yes));
}

void DirectStrategy::poll() { static_cast<void>(release_idle(kMaxRequestBytes, Wait::No)); }

Result<Bytes> DirectStrategy::trim(Bytes bytes, Wait wait) { return release_idle(bytes, wait); }

Result<Bytes> DirectStrategy::trim_pool(PoolId pool, Wait wait) {
    return release_idle(kMaxRequestBytes, wait, pool);
}

Result<Bytes> DirectStrategy::release_idle(Bytes bytes, Wait wait, PoolId pool) {
    if (idle_.empty() || store_.capturing()) { return Bytes{0}; }
    Bytes given = 0;
    for (std::size_t i = 0; i < idle_.size() && given < bytes;) {
        Segment* segment = idle_[i];
        const bool may_go = segment->shared() || !segment->captured;
        if (segment->pool != pool || !may_go || segment->pin_count > 0) {
            ++i;
            continue;
        }
        const Bytes segment_bytes = segment->bytes;
        const auto [gone, status] = store_.release(segment, wait);
        if (gone) {
            given += segment_bytes;
            idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            ++i;
        }
        if (!status.ok()) { return status; }
    }
    return given;
}

Block* DirectStrategy::take_at(PoolId pool, Address at, Bytes bytes) {
    const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const Segment* segment) {
        return segment->address == at && segment->bytes == bytes && segment->pool == pool &&
               segment->pin_count == 0;
    });
    if (found == idle_.end()) { return nullptr; }
    Block* block = (*found)->first;
    idle_.erase(found);
    store_.take(block, false);
    return block;
}

Status DirectStrategy::check_place(const Request&) const {
    return {Code::NotSupported, "the strategy direct keeps no memory to place a block in"};
}

Result<bool> DirectStrategy::fill_place(const Request& request, Effort) {
    const Block* block = store_.block_at(request.at, request.bytes);
    if (block != nullptr && block->segment->pool == request.pool) { return true; }
    return Status(Code::InvalidValue, "the pool has no memory at this address any more");
}

void DirectStrategy::release_pool(PoolId pool) {
    store_.share(pool);
    static_cast<void>(release_idle(kMaxRequestBytes, Wait::Yes));
}

Bytes DirectStrategy::largest_free_bytes() const {
    Bytes largest = 0;
    for (const Segment* segment : idle_) {
        if (segment->shared()) { largest = std::max(largest, segment->bytes); }
    }
    return largest;
}

}  // namespace gma
