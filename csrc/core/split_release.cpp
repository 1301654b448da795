// How the split strategy gives segments back: when the limit or the card is full, when asked to,
// and above garbage_collection_threshold.
#include <algorithm>

#include "core/split_strategy.h"

namespace gma {

// First what the limit asks for; if the card refuses all the same, everything that can go.
Result<Block*> SplitStrategy::grow_after_release(const Request& request, Wait wait) {
    if (request.capturing) { return grow(request); }
    const Bytes excess_bytes = store_.excess_bytes(segment_bytes(block_bytes(request)));
    if (excess_bytes > 0) {
        Result<Bytes> given = release_idle(excess_bytes, wait);
        if (!given) { return given.status(); }
    }
    Result<Block*> block = grow(request);
    if (!block || *block != nullptr) { return block; }
    Result<Bytes> given = release_idle(kMaxRequestBytes, wait);
    if (!given) { return given.status(); }
    return *given > 0 ? grow(request) : Result<Block*>(nullptr);
}

Result<Bytes> SplitStrategy::trim(Bytes bytes, Wait wait) { return release_idle(bytes, wait); }

Result<Bytes> SplitStrategy::release_idle(Bytes bytes, Wait wait) {
    if (bytes == 0 || store_.capturing()) { return Bytes{0}; }
    return release_all(store_.idle_segments(), bytes, wait);
}

Result<Bytes> SplitStrategy::trim_pool(PoolId pool, Wait wait) {
    if (store_.capturing()) { return Bytes{0}; }
    return release_all(store_.idle_segments(pool), kMaxRequestBytes, wait);
}

Result<Bytes> SplitStrategy::release_all(const std::vector<Segment*>& idle, Bytes bytes,
                                         Wait wait) {
    Bytes given = 0;
    for (Segment* segment : idle) {
        if (given >= bytes) { break; }
        if (Status status = release(segment, wait, given); !status.ok()) { return status; }
    }
    return given;
}

Status SplitStrategy::release(Segment* segment, Wait wait, Bytes& given_bytes) {
    FreeIndex& index = *segment->free_blocks;
    Block* block = segment->first;
    const Bytes bytes = segment->bytes;
    index.remove(block);
    const auto [gone, status] = store_.release(segment, wait);
    if (gone) {
        given_bytes += bytes;
    } else {
        index.insert(block);
    }
    return status;
}

// Blocks that are never cut can keep a smaller request waiting for ever: one that is large enough
// for a segment in its place goes, else the largest ones until they are. False: they do not
// suffice.
Result<bool> SplitStrategy::release_oversize(const Request& request) {
    const auto found = free_.find(key_of(request));
    if (max_split_bytes_ == kMaxRequestBytes || found == free_.end() || store_.capturing()) {
        return false;
    }
    const Bytes wanted_bytes = std::max(block_bytes(request), max_split_bytes_);
    Bytes given_bytes = 0;
    if (Block* block = found->second.find(wanted_bytes, kUnitBytes);
        block != nullptr && block->segment->idle() && block->segment->shared()) {
        if (Status s = release(block->segment, Wait::Yes, given_bytes); !s.ok()) { return s; }
        return true;
    }
    std::vector<Segment*> largest_first;
    for (Block* block : found->second) {
        const bool oversize = block->bytes >= max_split_bytes_;
        if (oversize && block->segment->idle() && block->segment->shared()) {
            largest_first.push_back(block->segment);
        }
    }
    std::reverse(largest_first.begin(), largest_first.end());
    for (Segment* segment : largest_first) {
        if (given_bytes >= wanted_bytes) { break; }
        if (Status s = release(segment, Wait::Yes, given_bytes); !s.ok()) { return s; }
    }
    return given_bytes >= wanted_bytes;
}

// Frees large segments that were not used for longer than the average one, until what is held is
// below the threshold. Only with a limit, as in PyTorch: the card itself is not one.
Status SplitStrategy::collect_garbage() {
    if (garbage_threshold_ <= 0.0 || store_.limit_bytes() >= card_bytes_) { return {}; }
    const auto threshold_bytes =
        static_cast<Bytes>(garbage_threshold_ * static_cast<double>(store_.limit_bytes()));
    if (store_.reserved_bytes() <= threshold_bytes || store_.capturing()) { return {}; }
    const Bytes target_bytes = store_.reserved_bytes() - threshold_bytes;
    std::vector<Segment*> old = store_.idle_segments();
    std::erase_if(old, [](const Segment* s) { return s->bytes <= kSmallSegmentBytes; });
    const auto age = [this](const Segment* s) { return large_search_count_ - s->search_count; };
    std::uint64_t total_age = 0;
    for (const Segment* segment : old) { total_age += age(segment); }
    Bytes given_bytes = 0;
    for (bool progress = true; progress && given_bytes < target_bytes && !old.empty();) {
        const double average = static_cast<double>(total_age) / static_cast<double>(old.size());
        progress = false;
        for (std::size_t i = 0; i < old.size();) {
            const std::uint64_t segment_age = age(old[i]);
            if (static_cast<double>(segment_age) < average) {
                ++i;
                continue;
            }
            if (Status s = release(old[i], Wait::Yes, given_bytes); !s.ok()) { return s; }
            total_age -= segment_age;
            old.erase(old.begin() + static_cast<std::ptrdiff_t>(i));
            progress = true;
        }
    }
    return {};
}

}  // namespace gma
