#include "core/chunk_cache.h"

#include <algorithm>
#include <iterator>

namespace gma {

void ChunkCache::put(std::uint64_t stream_id, GuardedChunk chunk) {
    chunks_[{stream_id, chunk.bytes}].push_back({chunk, next_order_++});
    bytes_ += chunk.bytes;
}

GuardedChunk ChunkCache::take(std::uint64_t stream_id, Bytes least_bytes, Bytes most_bytes) {
    auto above = chunks_.upper_bound({stream_id, most_bytes});
    if (above == chunks_.begin()) { return {}; }
    const auto found = std::prev(above);
    if (found->first.first != stream_id || found->first.second < least_bytes) { return {}; }
    const GuardedChunk chunk = found->second.back().chunk;
    found->second.pop_back();
    if (found->second.empty()) { chunks_.erase(found); }
    bytes_ -= chunk.bytes;
    return chunk;
}

GuardedChunk ChunkCache::take_oldest() {
    const auto oldest =
        std::min_element(chunks_.begin(), chunks_.end(), [](const auto& a, const auto& b) {
            return a.second.front().order < b.second.front().order;
        });
    if (oldest == chunks_.end()) { return {}; }
    const GuardedChunk chunk = oldest->second.front().chunk;
    oldest->second.pop_front();
    if (oldest->second.empty()) { chunks_.erase(oldest); }
    bytes_ -= chunk.bytes;
    return chunk;
}

Bytes ChunkCache::recounted_bytes() const {
    Bytes bytes = 0;
    for (const auto& [key, entries] : chunks_) {
        for (const Entry& entry : entries) { bytes += entry.chunk.bytes; }
    }
    return bytes;
}

}  // namespace gma
