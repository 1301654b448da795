#include "core/chunk_cache.h"

#include <iterator>

namespace gma {

void ChunkCache::put(std::uint64_t stream_id, GuardedChunk chunk) {
    const Key key{stream_id, chunk.bytes};
    chunk.stream_id = stream_id;
    by_order_.emplace_hint(by_order_.end(), next_order_, key);
    chunks_[key].push_back({chunk, next_order_++});
    bytes_ += chunk.bytes;
}

GuardedChunk ChunkCache::take(std::uint64_t stream_id, Bytes least_bytes, Bytes most_bytes) {
    auto above = chunks_.upper_bound({stream_id, most_bytes});
    if (above == chunks_.begin()) { return {}; }
    const auto found = std::prev(above);
    if (found->first.first != stream_id || found->first.second < least_bytes) { return {}; }
    std::deque<Entry>& entries = found->second;
    const auto at = best_of(entries);
    const Entry entry = *at;
    entries.erase(at);
    taken(found, entry);
    return entry.chunk;
}

std::deque<ChunkCache::Entry>::iterator ChunkCache::best_of(std::deque<Entry>& entries) {
    const auto newest = std::prev(entries.end());
    if (newest->chunk.window == 0 || newest->chunk.look != 0) { return newest; }
    auto at = newest;
    for (std::size_t left = kLatecomers; left > 0 && at != entries.begin(); --left) {
        if ((--at)->chunk.look != 0) { return at; }
    }
    return newest;
}

std::vector<GuardedChunk*> ChunkCache::unseen(std::uint64_t stream_id, Bytes bytes,
                                              std::size_t most) {
    std::vector<GuardedChunk*> found;
    const auto at = chunks_.find({stream_id, bytes});
    if (at == chunks_.end()) { return found; }
    std::deque<Entry>& entries = at->second;
    for (auto entry = entries.rbegin(); entry != entries.rend() && found.size() < most; ++entry) {
        GuardedChunk& chunk = entry->chunk;
        if (chunk.window != 0 && chunk.patterned && chunk.look == 0) { found.push_back(&chunk); }
    }
    return found;
}

std::vector<GuardedChunk> ChunkCache::take_if(
    const std::function<bool(const GuardedChunk&)>& picks) {
    std::vector<GuardedChunk> picked;
    for (auto at = chunks_.begin(); at != chunks_.end();) {
        std::erase_if(at->second, [&](const Entry& entry) {
            if (!picks(entry.chunk)) { return false; }
            picked.push_back(entry.chunk);
            by_order_.erase(entry.order);
            bytes_ -= entry.chunk.bytes;
            return true;
        });
        at = at->second.empty() ? chunks_.erase(at) : std::next(at);
    }
    return picked;
}

GuardedChunk ChunkCache::take_oldest() {
    if (by_order_.empty()) { return {}; }
    const auto found = chunks_.find(by_order_.begin()->second);
    const Entry entry = found->second.front();
    found->second.pop_front();
    taken(found, entry);
    return entry.chunk;
}

void ChunkCache::taken(Chunks::iterator from, const Entry& entry) {
    if (from->second.empty()) { chunks_.erase(from); }
    by_order_.erase(entry.order);
    bytes_ -= entry.chunk.bytes;
}

void ChunkCache::add_windows(Bytes guard_bytes, std::vector<ByteRange>& windows) const {
    for (const auto& [key, entries] : chunks_) {
        for (const Entry& entry : entries) {
            const Address begin = entry.chunk.window;
            if (begin == 0) { continue; }
            windows.push_back({begin, begin + entry.chunk.bytes + 2 * guard_bytes});
        }
    }
}

Bytes ChunkCache::recounted_bytes() const {
    Bytes bytes = 0;
    for (const auto& [key, entries] : chunks_) {
        for (const Entry& entry : entries) { bytes += entry.chunk.bytes; }
    }
    return bytes;
}

}  // namespace gma
