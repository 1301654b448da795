#include "core/direct_strategy.h"

#include <algorithm>

namespace gma {

Block* DirectStrategy::take_cached(const Request& request) {
    if (request.pool == PoolId{}) { return nullptr; }
    const auto fits = [&](const Segment* segment) {
        return segment->pool == request.pool && segment->bytes == request.bytes &&
               segment->line->stream == request.stream && segment->line->id == request.stream_id;
    };
    const auto found = std::find_if(idle_.begin(), idle_.end(), fits);
    if (found == idle_.end()) { return nullptr; }
    Block* block = (*found)->first;
    idle_.erase(found);
    store_.take(block);
    return block;
}

Result<Block*> DirectStrategy::obtain(const Request& request, Effort effort) {
    const bool tries =
        effort == Effort::Budget || effort == Effort::Limit || effort == Effort::HostWait;
    if (!tries) { return nullptr; }
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
    store_.take((*segment)->first);
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

Result<Bytes> DirectStrategy::release_idle(Bytes bytes, Wait wait) {
    if (idle_.empty() || store_.capturing()) { return Bytes{0}; }
    Bytes given = 0;
    for (std::size_t i = 0; i < idle_.size() && given < bytes;) {
        Segment* segment = idle_[i];
        if (!segment->shared() || segment->pin_count > 0) {
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

void DirectStrategy::release_pool(PoolId pool) {
    store_.share(pool);
    static_cast<void>(release_idle(kMaxRequestBytes, Wait::Yes));
}

Bytes DirectStrategy::largest_free_bytes() const {
    Bytes largest = 0;
    for (const Segment* segment : idle_) { largest = std::max(largest, segment->bytes); }
    return largest;
}

}  // namespace gma
