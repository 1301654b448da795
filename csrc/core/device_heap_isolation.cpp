// The device's part of the no-sharing mode: which level a request has, what its blocks are noted
// as, and the checks that frees of `packed` wait for.
#include <utility>

#include "base/format.h"
#include "core/device_heap.h"
#include "core/guarded_strategy.h"
#include "core/paged_strategy.h"
#include "core/regions.h"
#include "core/segment_store.h"

namespace gma {
namespace {

Violation violation_of(const Finding& finding, const LedgerEntry& tensor) {
    Violation violation;
    violation.kind =
        finding.first_bad < tensor.address ? Violation::Kind::Underrun : Violation::Kind::Overrun;
    violation.tensor = tensor;
    violation.first_bad = finding.first_bad;
    violation.bad_bytes = finding.bad_bytes;
    violation.found = finding.found;
    return violation;
}

}  // namespace

std::unique_ptr<HeapStrategy> DeviceHeap::make_isolated(Isolation level, PoolId pool) {
    if (level >= Isolation::Tensor) {
        return std::make_unique<GuardedStrategy>(driver_, device_, properties_, options_, level,
                                                 listeners_, ledger_);
    }
    Options options = options_;
    if (level != Isolation::Off) { options.cross_stream = "never"; }
    return std::make_unique<PagedStrategy>(driver_, device_, properties_, options, level, pool,
                                           addresses_, listeners_);
}

// Memory of private pools may be a graph's, which writes when it likes: `packed` does not check it.
Isolation DeviceHeap::level_of(PoolId pool) const {
    if (pool == PoolId{}) { return level_; }
    if (pool.first == kRegionPools) { return static_cast<Isolation>(pool.second); }
    if (strategy_->provides(pool)) { return Isolation::Off; }  // another allocator's memory
    return level_ == Isolation::Packed ? Isolation::PerStream : level_;
}

Bytes DeviceHeap::request_bytes_locked(Bytes bytes, PoolId pool) const {
    const Isolation level = level_of(pool);
    const bool is_paged = pool.first == kRegionPools
                              ? level < Isolation::Tensor
                              : kind_ == Strategy::Paged && !strategy_->provides(pool);
    const Bytes wanted = with_redzone(std::max(bytes, Bytes{1}), level);
    return is_paged ? large_bytes(wanted) : round_up(wanted, kUnitBytes);
}

void DeviceHeap::note_allocated_locked(Block* block, PoolId pool) {
    const Isolation level = level_of(pool);
    if (level < Isolation::Packed) { return; }
    block->checked = level == Isolation::Packed;
    const ByteRange window = strategy_->window_of(block);
    LedgerEntry entry;
    entry.address = block->address;
    entry.requested_bytes = block->requested();
    entry.window_begin = window.begin;
    entry.window_end = window.end;
    entry.stream = block->stream();
    entry.level = level;
    ledger_.allocated(entry);
}

// Marked as if a stream had been recorded, so that its free comes by here.
void DeviceHeap::note_object_locked(Slab* slab, Address address, Bytes requested_bytes) {
    if (level_ < Isolation::Packed) { return; }
    static_cast<void>(slab->cache->set_recorded(slab, address));
    pending_.expect(address);
    LedgerEntry entry;
    entry.address = address;
    entry.requested_bytes = requested_bytes;
    entry.window_begin = address;
    entry.window_end = address + slab->object_bytes;
    entry.stream = slab->cache->key().stream;
    entry.level = level_;
    ledger_.allocated(entry);
}

void DeviceHeap::note_freed_locked(Address address) {
    if (ledger_.used()) { ledger_.freed(address); }
}

bool DeviceHeap::waits_at_free_locked(Address address) const {
    const LedgerEntry* tensor = ledger_.gone(address);
    return tensor != nullptr && tensor->level == Isolation::Strict && !may_capture_locked();
}

bool DeviceHeap::knew(Address address) {
    const std::lock_guard guard(lock_);
    return ledger_.gone(address) != nullptr;
}

bool DeviceHeap::watches() {
    const std::lock_guard guard(lock_);
    return ledger_.used();
}

Status DeviceHeap::refuse_free(Address address) {
    const std::lock_guard guard(lock_);
    return refuse_free_locked(address);
}

Status DeviceHeap::refuse_free_locked(Address address) {
    if (!ledger_.used()) {
        return {Code::InvalidValue,
                "free of address " + hex_text(address) +
                    ", where no tensor is allocated (freed twice?).\nThe tensor that was there is "
                    "freed already, or none begins there.\nLook for two owners of the pointer; "
                    "enable(isolation=\"packed\") names both frees."};
    }
    return {Code::InvalidValue, violation_text(ledger_.refused_free(address))};
}

Status DeviceHeap::raise_violation_locked() {
    if (!raises_ || ledger_.violation_count() == raised_count_) { return {}; }
    raised_count_ = ledger_.violation_count();
    return {Code::InvalidValue, violation_text(ledger_.violations().back())};
}

bool DeviceHeap::is_checked(const PendingFree& free) const {
    return free.slab != nullptr ? level_ == Isolation::Packed : free.block->checked;
}

// All streams that used it are done with it but its own.
void DeviceHeap::finish_free_locked(const PendingFree& free) {
    if (!is_checked(free)) { return reuse_locked(free); }
    hold_for_check_locked(free);
    if (redzones_.due()) { flush_redzones_locked(); }
}

void DeviceHeap::hold_for_check_locked(const PendingFree& free) {
    Block* block = free.slab != nullptr ? free.slab->block : free.block;
    const ArenaKey& key = block->arena->key();
    std::vector<ByteRange> gaps = strategy_->gaps_of(block);
    if (free.slab != nullptr && !gaps.empty()) {
        const Slab& slab = *free.slab;
        const Address end = free.address + slab.object_bytes;
        gaps = {{end - slab.unused_bytes[slab.index_of(free.address)], end}};
    }
    if (free.slab == nullptr && block->kind == TileKind::Used) { strategy_->set_pending(block); }
    redzones_.add(free, key.stream, key.stream_id, gaps.empty() ? ByteRange{} : gaps.front());
}

// Nothing is launched while a graph may be captured; what waits, waits for the end of that.
void DeviceHeap::flush_redzones_locked() {
    if (redzones_.empty() || may_capture_locked()) { return; }
    redzones_.collect(false);
    for (const PendingFree& free : redzones_.flush()) { reuse_locked(free); }
}

void DeviceHeap::reuse_locked(const PendingFree& free) {
    if (free.slab != nullptr) { return return_object_locked(free.slab, free.address); }
    count_active_locked(free.block->bytes, stat_pool(free.block->requested_bytes), -1);
    // The check and the fill were queued since: they are the stream's last use.
    if (free.block->checked) { free.block->freed_at = ++free.block->arena->free_count; }
    free.block->checked = false;
    give_locked(free.block);
}

Status DeviceHeap::open_region(Isolation level) {
    const std::lock_guard guard(lock_);
    if (properties_.page_bytes == 0) { return {Code::NotSupported, no_mapping_text(device_)}; }
    const PoolId pool = region_pool(level);
    if (level != Isolation::Off && level != level_ && !strategy_->provides(pool)) {
        strategy_->add_region(pool, make_isolated(level, pool));
        ++pools_[pool].use_count;
        has_pools_ = true;
        note_change();
    }
    update_small_path_locked();
    return {};
}

void DeviceHeap::close_region() {
    const std::lock_guard guard(lock_);
    update_small_path_locked();
}

IsolationReport DeviceHeap::isolation_report() {
    const std::lock_guard guard(lock_);
    if (!may_capture_locked()) { redzones_.collect(false); }
    const StrategyCounters counters = strategy_->counters();
    IsolationReport report;
    report.level = level_;
    report.cached_bytes = counters.cached_bytes;
    report.waiting_bytes = counters.waiting_bytes + redzones_.large_bytes();
    report.quarantined_address_bytes = counters.quarantined_address_bytes;
    report.unchecked_count = counters.unchecked_count + redzones_.unchecked_count();
    report.violation_count = ledger_.violation_count();
    report.violations = ledger_.violations();
    report.shortcoming = driver_.content_shortcoming(device_);
    return report;
}

std::vector<LedgerEntry> DeviceHeap::ledger() {
    const std::lock_guard guard(lock_);
    return ledger_.entries();
}

Result<std::int64_t> DeviceHeap::check_now() {
    const std::lock_guard guard(lock_);
    if (may_capture_locked() && capture_under_way_locked()) {
        return Status(Code::NotSupported, "nothing can be checked while a graph is captured");
    }
    flush_redzones_locked();
    if (Status status = driver_.synchronize_device(device_); !status.ok()) { return status; }
    redzones_.collect(true);
    strategy_->poll();
    strategy_->settle();
    if (Status status = check_free_locked(); !status.ok()) { return status; }
    std::vector<ByteRange> ranges;
    std::vector<const LedgerEntry*> tensors;
    for (const auto& [address, entry] : ledger_.live()) {
        for (const ByteRange& gap : live_gaps_locked(entry)) {
            ranges.push_back(gap);
            tensors.push_back(&entry);
        }
    }
    std::vector<Finding> findings;
    if (Status status = look_at_locked(ranges, findings); !status.ok()) { return status; }
    for (const Finding& finding : findings) {
        ledger_.add(violation_of(finding, *tensors[finding.range]));
    }
    return static_cast<std::int64_t>(ledger_.live().size());
}

// Now, while the device is idle.
Status DeviceHeap::look_at_locked(const std::vector<ByteRange>& ranges,
                                  std::vector<Finding>& findings) {
    if (ranges.empty()) { return {}; }
    Result<Check> check = driver_.check(device_, nullptr, ranges, kPattern);
    if (!check) { return check.status(); }
    return driver_.checked(*check, true, findings).status();
}

// Whoever writes free memory of `packed` had a tensor there, the last one most likely. What was
// written is filled again, or the next tensor there would be blamed for it.
Status DeviceHeap::check_free_locked() {
    std::vector<ByteRange> ranges;
    strategy_->add_patterned(ranges);
    for (auto& cache : caches_) {
        if (level_ < Isolation::Packed) { break; }
        cache->for_each_slab([&](const Slab* slab) {
            if (strategy_->gaps_of(slab->block).empty()) { return; }
            slab->for_each_free_run(
                [&](Address begin, Address end) { ranges.push_back({begin, end}); });
        });
    }
    std::vector<Finding> findings;
    if (Status status = look_at_locked(ranges, findings); !status.ok()) { return status; }
    if (findings.empty()) { return {}; }
    std::vector<ByteRange> written;
    for (const Finding& finding : findings) {
        Violation violation;
        const LedgerEntry* last = ledger_.last_at(finding.first_bad);
        if (last != nullptr) { violation.tensor = *last; }
        violation.kind = Violation::Kind::WriteAfterFree;
        violation.first_bad = finding.first_bad;
        violation.bad_bytes = finding.bad_bytes;
        violation.found = finding.found;
        ledger_.add(violation);
        written.push_back(ranges[finding.range]);
    }
    if (Status status = driver_.fill(device_, nullptr, written, kPattern); !status.ok()) {
        return status;
    }
    return driver_.synchronize_device(device_);  // other streams do not wait for the default one
}

std::vector<ByteRange> DeviceHeap::live_gaps_locked(const LedgerEntry& entry) {
    if (const Block* block = strategy_->find(entry.address); block != nullptr) {
        return strategy_->gaps_of(block);
    }
    const Arena* arena = addresses_.find(entry.address);
    if (arena == nullptr) { return {}; }
    const std::uintptr_t tagged = addresses_.find(entry.address)->tagged_start(entry.address);
    const bool patterned = (tagged & 1) != 0 &&
                           !strategy_->gaps_of(reinterpret_cast<Slab*>(tagged - 1)->block).empty();
    if (!patterned) { return {}; }
    return {{entry.address + entry.requested_bytes, entry.window_end}};
}

// What the ledger calls live is allocated; what is allocated at a checked level, the ledger has.
Status DeviceHeap::audit_ledger_locked() {
    if (!ledger_.used()) { return {}; }
    std::size_t found = 0;
    std::vector<SegmentInfo> segments;
    strategy_->snapshot(segments);
    for (const SegmentInfo& segment : segments) {
        const bool is_ours = segment.pool == PoolId{} || segment.pool.first == kRegionPools;
        if (!is_ours || level_of(segment.pool) < Isolation::Packed) { continue; }
        for (const BlockInfo& info : segment.blocks) {
            const bool live = info.state == BlockState::Allocated;
            const Block* block = live ? strategy_->find(info.address) : nullptr;
            if (block == nullptr || block->slab != nullptr) { continue; }
            const LedgerEntry* entry = ledger_.live(info.address);
            if (entry == nullptr || entry->requested_bytes != info.requested_bytes) {
                return broken_invariant("an allocated block is live in the ledger", info.address,
                                        entry == nullptr ? 0 : entry->requested_bytes);
            }
        }
    }
    for (auto& cache : caches_) {
        if (level_ < Isolation::Packed) { break; }
        cache->for_each_slab([&](const Slab* slab) {
            for (std::uint32_t i = 0; i < slab->object_count; ++i) {
                const Address address = slab->address_of(i);
                found += !Slab::test(slab->free_bits, i) && pending_.recorded(address);
            }
        });
    }
    for (const auto& [address, entry] : ledger_.live()) {
        const Block* block = strategy_->find(address);
        if (block == nullptr || block->slab != nullptr) { continue; }
        if (block->kind != TileKind::Used || block->requested() != entry.requested_bytes) {
            return broken_invariant("a live entry of the ledger is allocated", address, 0);
        }
        ++found;
    }
    if (found != ledger_.live().size()) {
        return broken_invariant("live blocks of checked levels == live entries", found,
                                ledger_.live().size());
    }
    return {};
}

}  // namespace gma
