#include "core/guarded_strategy.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace gma {
namespace {

// The store owns the memory; the strategy, which needs it first, refers to it.
std::unique_ptr<SegmentMemory> owned(GuardedMemory& memory) {
    return std::unique_ptr<SegmentMemory>(&memory);
}

}  // namespace

GuardedStrategy::GuardedStrategy(Driver& driver, int device, DeviceProperties properties,
                                 const Options& options, Isolation level,
                                 const Listeners& listeners, Ledger& ledger)
    : waits_at_free_(level == Isolation::Strict),
      memory_(*new GuardedMemory(driver, device, properties, options, level, ledger)),
      store_(driver, device, listeners, owned(memory_)) {}

GuardedStrategy::IdleKey GuardedStrategy::key_of(const Segment& segment) {
    return {segment.pool, segment.line->stream, segment.line->id, segment.bytes};
}

std::pair<Bytes, std::int64_t> GuardedStrategy::split_of(const Segment& segment) const {
    const BaseAllocation pages = memory_.pages(segment.address);
    const Bytes gaps = pages.bytes - segment.bytes;
    const Bytes front = segment.address - pages.address;
    return {gaps, (front > 0 ? 1 : 0) + (gaps > front ? 1 : 0)};
}

Block* GuardedStrategy::take(Segment* segment, bool for_graph) {
    store_.take(segment->first, for_graph);
    const auto [bytes, count] = split_of(*segment);
    split_bytes_ += bytes;
    split_count_ += count;
    return segment->first;
}

void GuardedStrategy::freed(Segment* segment) {
    const auto [bytes, count] = split_of(*segment);
    split_bytes_ -= bytes;
    split_count_ -= count;
    retire(segment);
}

// Only a private pool has memory at hand.
Block* GuardedStrategy::take_cached(const Request& request) {
    if (request.at != 0) { return take_at(request.pool, request.at, request.bytes); }
    if (idle_.empty() || request.pool == PoolId{}) { return nullptr; }
    const auto found = idle_.find({request.pool, request.stream, request.stream_id,
                                   memory_.block_bytes(request.requested_bytes)});
    if (found == idle_.end()) { return nullptr; }
    Segment* segment = found->second;
    idle_.erase(found);
    memory_.renew(segment->address, request.requested_bytes);
    return take(segment, request.for_graph);
}

Result<Block*> GuardedStrategy::obtain(const Request& request, Effort effort) {
    if (request.at != 0) { return nullptr; }
    if (effort != Effort::Budget && effort < Effort::Limit) { return nullptr; }
    Result<Block*> block = open(request);
    while (block && *block == nullptr && effort == Effort::HostWait && !request.capturing) {
        Segment* segment = oldest();
        if (segment == nullptr) { break; }
        Result<bool> gone = finish(segment, Wait::Yes);
        if (!gone) { return gone.status(); }
        if (!*gone) { break; }
        block = open(request);
    }
    return block;
}

Result<Block*> GuardedStrategy::open(const Request& request) {
    Result<Segment*> segment = store_.obtain(memory_.block_bytes(request.requested_bytes), request);
    if (!segment) {
        if (segment.status().code() == Code::OutOfMemory) { return nullptr; }
        return segment.status();
    }
    return take(*segment, request.for_graph);
}

void GuardedStrategy::give(Block* block) {
    if (store_.give(block)) { freed(block->segment); }
}

void GuardedStrategy::unpin(Block* block) {
    if (store_.unpin(block)) { freed(block->segment); }
}

// What a graph may still use.
bool GuardedStrategy::stays(const Segment& segment) const {
    return segment.captured && !segment.shared();
}

void GuardedStrategy::retire(Segment* segment) {
    if (stays(*segment)) {
        idle_.emplace(key_of(*segment), segment);
        return;
    }
    if (store_.capturing()) {
        deferred_.push_back(segment);
        return;
    }
    memory_.sweep(*segment);
    SegmentStore::queued(*segment);
    std::deque<Segment*>& line = waiting_[segment->line];
    line.push_back(segment);
    waiting_bytes_ += segment->held_bytes;
    const bool fenced = store_.fence(*segment).ok() && !segment->captured;
    if (waits_at_free_ || !fenced) {  // nobody but the device can tell when it is out of use
        static_cast<void>(finish(segment, Wait::Yes));
        return;
    }
    // The next allocation asks as well.
    if (line.size() > kUnaskedCount) { static_cast<void>(finish_passed(line)); }
    while (waiting_bytes_ > allowance_bytes()) {
        const Result<bool> gone = finish(oldest(), Wait::Yes);
        if (!gone || !*gone) { return; }  // tried again with the next free
    }
}

Bytes GuardedStrategy::allowance_bytes() const {
    return std::max(kWaitingBytes, store_.used_bytes() / kWaitingShare);
}

Segment* GuardedStrategy::oldest() const {
    Segment* found = nullptr;
    for (const auto& [line, segments] : waiting_) {
        Segment* front = segments.front();
        if (found == nullptr || front->freed_order < found->freed_order) { found = front; }
    }
    return found;
}

// True: gone, whatever the driver said of it.
Result<bool> GuardedStrategy::finish(Segment* segment, Wait wait) {
    const StreamLine* line = segment->line;
    const Bytes held_bytes = segment->held_bytes;
    auto [gone, status] = store_.release(segment, wait);
    if (gone) {
        const auto at = waiting_.find(line);
        std::deque<Segment*>& waiting = at->second;
        if (waiting.back() == segment) {
            waiting.pop_back();
        } else {
            waiting.erase(std::find(waiting.begin(), waiting.end(), segment));
        }
        if (waiting.empty()) { waiting_.erase(at); }
        waiting_bytes_ -= held_bytes;
    }
    if (!status.ok()) { return std::move(status); }
    return gone;
}

// Those of a line whose fences have passed; the deque is gone when it is empty.
Status GuardedStrategy::finish_passed(std::deque<Segment*>& line) {
    for (std::size_t left = line.size(); left > 0; --left) {
        const Result<bool> gone = finish(line.front(), Wait::No);
        if (!gone) { return gone.status(); }
        if (!*gone) { return {}; }
    }
    return {};
}

void GuardedStrategy::poll() {
    if (waiting_.empty() && deferred_.empty() && !memory_.has_looks()) { return; }
    if (store_.capturing()) { return; }
    memory_.poll_looks();
    static_cast<void>(retire_deferred({}));
    for (auto it = waiting_.begin(); it != waiting_.end();) {
        static_cast<void>(finish_passed((it++)->second));
    }
}

// What was freed while a graph was captured, of one pool or of all.
Bytes GuardedStrategy::retire_deferred(PoolId pool) {
    Bytes bytes = 0;
    for (Segment* segment : std::exchange(deferred_, {})) {
        if (pool != PoolId{} && segment->origin != pool) {
            deferred_.push_back(segment);
        } else {
            bytes += segment->held_bytes;
            retire(segment);
        }
    }
    return bytes;
}

Result<Bytes> GuardedStrategy::finish_waiting(Bytes bytes) {
    Bytes gone_bytes = 0;
    for (Segment* segment = oldest(); segment != nullptr && gone_bytes < bytes;
         segment = oldest()) {
        const Bytes held_bytes = segment->held_bytes;
        const Result<bool> gone = finish(segment, Wait::Yes);
        if (!gone) { return gone.status(); }
        if (!*gone) { break; }
        gone_bytes += held_bytes;
    }
    return gone_bytes;
}

Result<Bytes> GuardedStrategy::trim(Bytes bytes, Wait wait) {
    if (store_.capturing()) { return Bytes{0}; }
    poll();
    memory_.retry_stuck();
    if (bytes == kMaxRequestBytes) { memory_.forget_peak(); }
    if (wait == Wait::Yes && memory_.cached_bytes() < bytes) {
        Result<Bytes> waited = finish_waiting(bytes - memory_.cached_bytes());
        if (!waited) { return waited; }
    }
    return memory_.release_cached(bytes);
}

Result<Bytes> GuardedStrategy::trim_pool(PoolId pool, Wait wait) {
    if (store_.capturing()) { return Bytes{0}; }
    const Bytes retired = retire_deferred(pool);
    return retired == 0 ? Result<Bytes>(Bytes{0}) : trim(retired, wait);
}

void GuardedStrategy::release_pool(PoolId pool) {
    store_.share(pool);
    const auto first = idle_.lower_bound({pool, nullptr, 0, 0});
    auto last = first;
    for (; last != idle_.end() && std::get<PoolId>(last->first) == pool; ++last) {
        deferred_.push_back(last->second);
    }
    idle_.erase(first, last);
    poll();
}

// Of a graph's memory: a block that was freed there, whole.
Block* GuardedStrategy::take_at(PoolId pool, Address at, Bytes bytes) {
    const Block* block = store_.block_at(at, bytes);
    if (block == nullptr || block->address != at || block->bytes != bytes) { return nullptr; }
    Segment* segment = block->segment;
    const auto [first, last] = idle_.equal_range(key_of(*segment));
    const auto found =
        std::find_if(first, last, [&](const auto& entry) { return entry.second == segment; });
    if (found == last || segment->pool != pool) { return nullptr; }
    idle_.erase(found);
    memory_.renew(at, bytes);
    return take(segment, false);
}

Status GuardedStrategy::check_place(const Request&) const {
    return {Code::NotSupported,
            "with isolation each tensor has addresses of its own: none can be named for it"};
}

Result<bool> GuardedStrategy::fill_place(const Request& request, Effort) {
    const Block* block = store_.block_at(request.at, request.bytes);
    if (block != nullptr && block->segment->pool == request.pool && block->bytes == request.bytes &&
        (block->kind != TileKind::Free || stays(*block->segment))) {
        return true;
    }
    return Status(Code::InvalidValue, "the pool has no memory at this address any more");
}

void GuardedStrategy::set_limit(Bytes limit_bytes) { memory_.set_limit(limit_bytes); }

Bytes GuardedStrategy::available_bytes(Bytes growth_bytes) const {
    return round_down(growth_bytes + memory_.cached_bytes() + waiting_bytes_, kUnitBytes);
}

StrategyCounters GuardedStrategy::counters() const {
    StrategyCounters counters = store_.counters();
    counters.device_alloc_count = memory_.created_count();
    counters.device_free_count = memory_.released_count();
    counters.leaked_count = memory_.leaked_count();
    counters.cached_bytes = memory_.cached_bytes();
    counters.waiting_bytes = waiting_bytes_;
    counters.quarantined_address_bytes = memory_.quarantined_bytes();
    counters.unchecked_count = memory_.unchecked_count();
    counters.inactive_split_bytes = split_bytes_;
    counters.inactive_split_count = split_count_;
    return counters;
}

// A segment is the pages of a block. The gap in front of it and behind it are Free in them; all is
// one Free block when it was freed.
void GuardedStrategy::snapshot(std::vector<SegmentInfo>& segments) const {
    const std::size_t first = segments.size();
    store_.snapshot(segments);
    for (std::size_t i = first; i < segments.size(); ++i) {
        SegmentInfo& segment = segments[i];
        const BaseAllocation pages = memory_.pages(segment.address);
        const Bytes front = segment.address - pages.address;
        const Bytes behind = pages.bytes - front - segment.bytes;
        if (segment.blocks.front().state == BlockState::Free) {
            segment.blocks = {{pages.address, pages.bytes, 0, BlockState::Free}};
        } else {
            if (front > 0) {
                segment.blocks.insert(segment.blocks.begin(),
                                      {pages.address, front, 0, BlockState::Free});
            }
            if (behind > 0) {
                segment.blocks.push_back(
                    {segment.address + segment.bytes, behind, 0, BlockState::Free});
            }
        }
        segment.address = pages.address;
        segment.bytes = pages.bytes;
    }
}

// As reports count them: what is inactive beside a block.
Status GuardedStrategy::audit_split() const {
    std::vector<SegmentInfo> segments;
    snapshot(segments);
    Bytes bytes = 0;
    std::int64_t count = 0;
    for (const SegmentInfo& segment : segments) {
        if (segment.blocks.size() == 1) { continue; }
        for (const BlockInfo& block : segment.blocks) {
            if (block.state != BlockState::Free) { continue; }
            bytes += block.bytes;
            ++count;
        }
    }
    if (bytes != split_bytes_ || count != split_count_) {
        return broken_invariant("sum(gaps beside blocks) == inactive split bytes", bytes,
                                split_bytes_);
    }
    return {};
}

Status GuardedStrategy::audit() const {
    std::size_t listed = idle_.size() + deferred_.size();
    Bytes waiting_bytes = 0;
    for (const auto& [line, segments] : waiting_) {
        listed += segments.size();
        for (const Segment* segment : segments) { waiting_bytes += segment->held_bytes; }
    }
    if (waiting_bytes != waiting_bytes_) {
        return broken_invariant("sum(waiting held_bytes) == waiting bytes", waiting_bytes,
                                waiting_bytes_);
    }
    if (Status status = memory_.audit(); !status.ok()) { return status; }
    if (Status status = audit_split(); !status.ok()) { return status; }
    if (memory_.in_use_bytes() != store_.reserved_bytes()) {
        return broken_invariant("windows hold what segments do", memory_.in_use_bytes(),
                                store_.reserved_bytes());
    }
    return store_.audit(listed);
}

}  // namespace gma
