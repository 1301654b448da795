#include "core/segment_store.h"

#include <algorithm>

#include "base/check.h"

namespace gma {

SegmentStore::~SegmentStore() {
    for (const auto& [address, segment] : segments_) {
        tell(Action::SegmentFree, *segment);
        static_cast<void>(memory_->give_back(*segment));
    }
}

Result<Segment*> SegmentStore::obtain(Bytes bytes, const Request& request) {
    if (bytes > limit_bytes_ || excess_bytes(bytes) > 0) {
        return Status(Code::OutOfMemory, "the limit does not allow another segment");
    }
    Result<Address> address = memory_->obtain(bytes, request);
    if (!address) { return address.status(); }
    if (memory_->is_foreign() && block_at(*address, 1) != nullptr) {
        return Status(Code::InvalidValue, "the pool's allocator gave the same memory twice");
    }
    auto segment = std::make_unique<Segment>();
    segment->address = *address;
    segment->bytes = bytes;
    segment->held_bytes = memory_->held_bytes(bytes);
    segment->line = &line_of(request);
    segment->pool = segment->origin = request.pool;
    segment->serial = ++obtained_count_;
    segment->first = blocks_.take();
    segment->first->address = *address;
    segment->first->bytes = bytes;
    segment->first->segment = segment.get();
    ++segment->line->segment_count;
    reserved_bytes_ += segment->held_bytes;
    ++change_count_;
    ++counters_.segment_count;
    ++counters_.device_alloc_count;
    tell(Action::SegmentAlloc, *segment);
    return segments_.emplace(*address, std::move(segment)).first->second.get();
}

void SegmentStore::tell(Action action, const Segment& segment) const {
    if (!listeners_.inside()) { return; }
    const BaseAllocation extent = memory_->extent(segment);
    listeners_.tell_segment(action, device_, extent.address, extent.bytes, segment.line->stream,
                            segment.pool);
}

template <class Holds>
std::vector<Segment*> SegmentStore::idle_where(Holds&& holds) const {
    std::vector<Segment*> idle;
    for (const auto& [address, segment] : segments_) {
        if (segment->idle() && holds(*segment)) { idle.push_back(segment.get()); }
    }
    std::sort(idle.begin(), idle.end(),
              [](const Segment* a, const Segment* b) { return a->freed_order < b->freed_order; });
    return idle;
}

StreamLine& SegmentStore::line_of(const Request& request) {
    return lines_
        .try_emplace({request.stream, request.stream_id}, driver_, device_, request.stream,
                     request.stream_id)
        .first->second;
}

SegmentStore::Released SegmentStore::release(Segment* segment, Wait wait) {
    GMA_ASSERT_EQ(segment->idle(), true, "only an idle segment is given back");
    StreamLine& line = *segment->line;
    if (!segment->quiet() && !segment->captured) {
        // A fence that is recorded now passes at once if the stream has nothing left to do.
        static_cast<void>(line.fences.covering(segment->freed_at, line.free_count));
        line.fences.poll();
    }
    if (!segment->quiet()) {
        if (wait != Wait::Yes) { return {false, {}}; }
        if (Status status = wait_for(*segment); !status.ok()) { return {false, status}; }
    }
    tell(Action::SegmentFree, *segment);
    Status status = memory_->give_back(*segment);
    ++(status.ok() ? counters_.device_free_count : counters_.leaked_count);
    forget(segment);
    return {true, std::move(status)};
}

// A stream that was destroyed with work unfenced can only be waited for through its device, and so
// can graphs, which were launched on streams that we do not know.
Status SegmentStore::wait_for(Segment& segment) {
    StreamLine& line = *segment.line;
    ++counters_.host_wait_count;
    if (!segment.captured && line.fences.synchronize(segment.freed_at, line.free_count).ok()) {
        return {};
    }
    Status status = driver_.synchronize_device(device_);
    if (!status.ok()) { return status; }
    line.fences.all_passed(line.free_count);
    // Only segments that no graph can be launched for any more are waited for.
    segment.captured = false;
    return {};
}

void SegmentStore::forget(Segment* segment) {
    reserved_bytes_ -= segment->held_bytes;
    ++change_count_;
    --counters_.segment_count;
    blocks_.give(segment->first);
    StreamLine& line = *segment->line;
    if (--line.segment_count == 0) { lines_.erase({line.stream, line.id}); }
    segments_.erase(segment->address);
}

bool SegmentStore::capturing() {
    return captures_ || std::any_of(lines_.begin(), lines_.end(), [this](const auto& entry) {
               const Result<bool> capturing = driver_.capturing(device_, entry.second.stream);
               return capturing && *capturing;  // a destroyed stream fails, and captures nothing
           });
}

void SegmentStore::poll() {
    for (auto& [key, line] : lines_) { line.fences.poll(); }
}

void SegmentStore::take(Block* block, bool for_graph) {
    block->kind = TileKind::Used;
    block->segment->captured |= for_graph;
    used_bytes_ += block->bytes;
    used_.emplace(block->address, block);
}

bool SegmentStore::give(Block* block) {
    if (block->pin_count > 0) {
        block->kind = TileKind::Pending;
        given_while_pinned_.insert(block);
        return false;
    }
    set_free(block);
    return true;
}

void SegmentStore::set_free(Block* block) {
    used_.erase(block->address);
    used_bytes_ -= block->bytes;
    block->kind = TileKind::Free;
    block->requested_bytes = 0;
    block->recorded = false;
    Segment& segment = *block->segment;
    segment.freed_at = ++segment.line->free_count;
    segment.freed_order = ++give_count_;
}

void SegmentStore::pin(Block* block) {
    ++block->pin_count;
    ++block->segment->pin_count;
}

bool SegmentStore::unpin(Block* block) {
    --block->segment->pin_count;
    if (--block->pin_count > 0 || given_while_pinned_.erase(block) == 0) { return false; }
    set_free(block);
    return true;
}

Block* SegmentStore::split(Block* block, Bytes bytes) {
    GMA_ASSERT_LT(bytes, block->bytes, "a block is cut inside");
    Block* upper = blocks_.take();
    upper->address = block->address + bytes;
    upper->bytes = block->bytes - bytes;
    upper->segment = block->segment;
    upper->previous = block;
    upper->next = block->next;
    if (upper->next != nullptr) { upper->next->previous = upper; }
    block->next = upper;
    block->bytes = bytes;
    return upper;
}

void SegmentStore::absorb_next(Block* block) {
    Block* next = block->next;
    block->bytes += next->bytes;
    block->next = next->next;
    if (block->next != nullptr) { block->next->previous = block; }
    blocks_.give(next);
}

std::vector<Segment*> SegmentStore::share(PoolId pool) {
    std::vector<Segment*> shared;
    for (const auto& [address, segment] : segments_) {
        if (segment->pool != pool || pool == PoolId{}) { continue; }
        segment->pool = PoolId{};
        ++change_count_;
        shared.push_back(segment.get());
    }
    return shared;
}

std::vector<Segment*> SegmentStore::idle_segments() const {
    return idle_where([](const Segment& segment) { return segment.shared(); });
}

std::vector<Segment*> SegmentStore::idle_segments(PoolId pool) const {
    return idle_where([pool](const Segment& segment) {
        return segment.origin == pool && (segment.shared() || !segment.captured);
    });
}

Bytes SegmentStore::idle_bytes() const {
    Bytes bytes = 0;
    for (const auto& [address, segment] : segments_) {
        if (segment->idle() && segment->shared()) { bytes += segment->held_bytes; }
    }
    return bytes;
}

bool SegmentStore::captured(PoolId pool) const {
    return std::any_of(segments_.begin(), segments_.end(), [&](const auto& entry) {
        return entry.second->pool == pool && entry.second->captured;
    });
}

void SegmentStore::add_pool_bytes(std::map<PoolId, Bytes>& held) const {
    for (const auto& [address, segment] : segments_) {
        if (!segment->shared()) { held[segment->pool] += segment->held_bytes; }
    }
}

std::vector<Block*> SegmentStore::pool_blocks(PoolId pool) const {
    std::vector<Block*> blocks;
    for (const auto& [address, segment] : segments_) {
        if (segment->pool != pool) { continue; }
        for (Block* block = segment->first; block != nullptr; block = block->next) {
            if (block->kind != TileKind::Free) { blocks.push_back(block); }
        }
    }
    return blocks;
}

Block* SegmentStore::block_at(Address at, Bytes bytes) const {
    auto above = segments_.upper_bound(at);
    if (above == segments_.begin()) { return nullptr; }
    const Segment& segment = *std::prev(above)->second;
    if (at + bytes > segment.address + segment.bytes || at + bytes < at) { return nullptr; }
    Block* block = segment.first;
    while (block->end() <= at) { block = block->next; }
    return block->end() >= at + bytes ? block : nullptr;
}

}  // namespace gma
