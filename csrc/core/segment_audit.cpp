// Recounting the segments: the equations of segment.h and segment_store.h, tested as written; and
// how they are shown.
#include "core/segment_store.h"

namespace gma {

Status broken_invariant(const char* must_hold, Bytes left, Bytes right) {
    return {Code::InvalidValue, std::string("audit: ") + must_hold + " must hold, but left is " +
                                    std::to_string(left) + " and right is " +
                                    std::to_string(right)};
}

Status SegmentStore::audit_segment(const Segment& segment, std::size_t& free_count,
                                   std::size_t& used_count, Bytes& used_bytes) const {
    Address at = segment.address;
    std::uint32_t pin_count = 0;
    const Block* previous = nullptr;
    for (const Block* block = segment.first; block != nullptr;
         previous = block, block = block->next) {
        if (block->address != at) {
            return broken_invariant("blocks tile their segment", block->address, at);
        }
        if (block->previous != previous || block->segment != &segment) {
            return broken_invariant("links agree both ways", 0, 1);
        }
        at = block->end();
        pin_count += block->pin_count;
        if (block->kind == TileKind::Free) {
            ++free_count;
            if (previous != nullptr && previous->kind == TileKind::Free) {
                return broken_invariant("no two neighbours are both Free", previous->address,
                                        block->address);
            }
            continue;
        }
        ++used_count;
        used_bytes += block->bytes;
        if (find(block->address) != block) {
            return broken_invariant("a Used block is found by its address", block->address, 0);
        }
    }
    if (at != segment.address + segment.bytes) {
        return broken_invariant("sum(block.bytes) == segment bytes", at - segment.address,
                                segment.bytes);
    }
    if (pin_count != segment.pin_count) {
        return broken_invariant("sum(block pins) == segment pins", pin_count, segment.pin_count);
    }
    return {};
}

Status SegmentStore::audit(std::size_t listed_count) const {
    Bytes sum_bytes = 0;
    std::size_t free_count = 0;
    std::size_t used_count = 0;
    Bytes used_bytes = 0;
    for (const auto& [address, segment] : segments_) {
        Status status = audit_segment(*segment, free_count, used_count, used_bytes);
        if (!status.ok()) { return status; }
        sum_bytes += segment->held_bytes;
    }
    if (sum_bytes != reserved_bytes_) {
        return broken_invariant("sum(segment.held_bytes) == reserved", sum_bytes, reserved_bytes_);
    }
    if (used_count != used_.size()) {
        return broken_invariant("only Used blocks are found", used_.size(), used_count);
    }
    if (used_bytes != used_bytes_) {
        return broken_invariant("sum(used block.bytes) == used bytes", used_bytes_, used_bytes);
    }
    if (free_count != listed_count) {
        return broken_invariant("every Free block is listed", listed_count, free_count);
    }
    if (static_cast<Bytes>(counters_.segment_count) != segments_.size()) {
        return broken_invariant("segments are counted", segments_.size(),
                                static_cast<Bytes>(counters_.segment_count));
    }
    return {};
}

void SegmentStore::snapshot(std::vector<SegmentInfo>& segments) const {
    for (const auto& [address, segment] : segments_) {
        SegmentInfo& info = segments.emplace_back();
        info.device = device_;
        info.address = address;
        info.bytes = segment->bytes;
        info.stream = segment->line->stream;
        info.pool = segment->pool;
        info.serial = segment->serial;
        for (const Block* block = segment->first; block != nullptr; block = block->next) {
            const BlockState state = block->kind == TileKind::Free      ? BlockState::Free
                                     : block->kind == TileKind::Pending ? BlockState::PendingFree
                                                                        : BlockState::Allocated;
            info.blocks.push_back({block->address, block->bytes, block->requested_bytes, state});
        }
    }
}

}  // namespace gma
