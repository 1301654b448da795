#include "core/guarded_memory.h"

#include <algorithm>
#include <utility>

#include "core/segment_store.h"
#include "core/usable_stream.h"

namespace gma {

GuardedMemory::GuardedMemory(Driver& driver, int device, DeviceProperties properties,
                             const Options& options, Isolation level, Ledger& ledger)
    : driver_(driver),
      device_(device),
      page_bytes_(properties.page_bytes),
      alignment_(std::min(Bytes{options.guard_alignment}, properties.page_bytes)),
      least_kept_bytes_(std::max(kKeptBytes, properties.total_bytes / kKeptShareOfCard)),
      against_lower_(options.guard == "lower"),
      poisons_(options.poison == "on"),
      scrubs_(options.scrub == "on"),
      moves_(options.mapping_thread == "auto" ? driver.is_card() : options.mapping_thread == "on"),
      unmaps_at_once_(level == Isolation::Strict),
      ledger_(ledger),
      addresses_(driver, device, properties.page_bytes, options.quarantine_gb * 1_GiB),
      thread_(driver, device) {}

GuardedMemory::~GuardedMemory() {
    retry_stuck();
    static_cast<void>(release_cached(kMaxRequestBytes));
}

BaseAllocation GuardedMemory::extent(const Segment& segment) const {
    return pages(segment.address);
}

Result<Address> GuardedMemory::obtain(Bytes block_bytes, const Request& request) {
    take_moved();
    Window window;
    window.pages_bytes = held_bytes(block_bytes);
    window.bytes = window.pages_bytes + 2 * page_bytes_;
    window.requested_bytes = request.requested_bytes;
    window.stream = request.stream;
    window.stream_id = request.stream_id;
    // Not while a graph is captured: a fill would become a part of it, or break it.
    const bool may_fill = !request.for_graph && !request.capturing;
    const std::vector<GuardedChunk> aside =
        may_fill ? std::vector<GuardedChunk>{} : put_looked_at_aside();
    Status status = open(window, block_bytes);
    if (status.ok() && may_fill) { status = fill_fresh(window); }
    if (!status.ok()) { static_cast<void>(close(window, Addresses::Unused)); }
    bring_back(aside);
    if (!status.ok()) { return status; }
    if (may_fill) { look_at_reused(window); }
    in_use_bytes_ += window.pages_bytes;
    in_use_peak_bytes_ = std::max(in_use_peak_bytes_, in_use_bytes_);
    const Address block = window.block;
    windows_.emplace(block, std::move(window));
    return block;
}

// What was gathered may be mapped in a window already. Addresses that nobody has seen are no loss
// if there is no memory for them.
Status GuardedMemory::open(Window& window, Bytes block_bytes) {
    if (Status status = gather(window); !status.ok()) { return status; }
    window.begin = std::exchange(window.chunks.front().window, 0);
    const bool is_mapped = window.begin != 0;
    if (!is_mapped) {
        Result<Address> begin = addresses_.take(window.bytes);
        if (!begin) { return begin.status(); }
        window.begin = *begin;
    }
    window.pages = window.begin + page_bytes_;
    window.block = against_lower_ ? window.pages : window.pages + window.pages_bytes - block_bytes;
    if (is_mapped) { return {}; }
    const MappingThread::Turn turn(thread_);
    return map_chunks(driver_, device_, window.pages, window.chunks);
}

Status GuardedMemory::fill_fresh(Window& window) {
    std::vector<ByteRange> ranges = poisons_ ? std::vector<ByteRange>{} : gaps_of(window);
    Address at = window.pages;
    for (const GuardedChunk& chunk : window.chunks) {
        if (poisons_ && !chunk.patterned) { ranges.push_back({at, at + chunk.bytes}); }
        at += chunk.bytes;
    }
    window.patterned = true;
    if (ranges.empty()) { return {}; }
    Status status = driver_.fill(device_, window.stream, ranges, kPattern);
    // A part of it may be on its way, to pages that are unmapped next.
    if (!status.ok()) { static_cast<void>(driver_.synchronize_device(device_)); }
    return status;
}

// What the driver refuses to unmap is stuck, and with it the window's addresses.
Status GuardedMemory::close(Window& window, Addresses addresses) {
    const LastPlace last = window.swept ? LastPlace::Note : LastPlace::Keep;
    for (GuardedChunk& chunk : window.chunks) { end_look(chunk, Passage::Wait); }
    const Status status = [&] {
        const MappingThread::Turn turn(thread_);
        return unmap_chunks(driver_, window.pages, last, window.chunks);
    }();
    if (status.ok()) {
        put(window, addresses);
        keep_within(0);
    } else {
        stick(std::move(window), addresses);
    }
    return status;
}

// Of a window that has no addresses (any more), only the handles.
void GuardedMemory::put(Window& window, Addresses addresses) {
    for (const GuardedChunk& chunk : window.chunks) { cache_.put(window.stream_id, chunk); }
    window.chunks.clear();
    if (window.begin == 0) { return; }
    if (addresses == Addresses::Used) { return retire(window); }
    addresses_.give_back(window.begin, window.bytes);
}

void GuardedMemory::retire(Window& window) {
    quarantined_[window.begin] = window.block;
    for (Address begin : addresses_.retire(std::exchange(window.begin, 0), window.bytes)) {
        const auto expired = quarantined_.extract(begin);
        if (!expired.empty()) { ledger_.expired(expired.mapped()); }
    }
}

void GuardedMemory::stick(Window window, Addresses addresses) {
    stuck_bytes_ += window.pages_bytes;
    stuck_.emplace_back(std::move(window), addresses);
}

std::vector<ByteRange> GuardedMemory::gaps_of(const Window& window) {
    std::vector<ByteRange> gaps;
    const Address end = window.block + window.requested_bytes;
    const Address pages_end = window.pages + window.pages_bytes;
    if (window.block > window.pages) { gaps.push_back({window.pages, window.block}); }
    if (end < pages_end) { gaps.push_back({end, pages_end}); }
    return gaps;
}

std::vector<ByteRange> GuardedMemory::gaps(Address address) const {
    const auto it = windows_.find(address);
    if (it == windows_.end()) { return {}; }
    const Window& window = it->second;
    const bool is_held = window.patterned && !window.swept && !is_spoiled(window);
    return is_held ? gaps_of(window) : std::vector<ByteRange>{};
}

void GuardedMemory::sweep(const Segment& segment) {
    Window& window = windows_.at(segment.address);
    if (std::exchange(window.swept, true)) { return; }
    const auto stream = usable_stream(driver_, device_, window.stream, window.stream_id);
    bool filled = stream && look_and_fill(window, stream->stream);
    if (!stream) { unchecked_count_ += window.patterned && !gaps_of(window).empty() ? 1 : 0; }
    if (stream) { filled &= order_before_others(driver_, device_, *stream).ok(); }
    const LedgerEntry* tensor = ledger_.gone(window.block);
    for (GuardedChunk& chunk : window.chunks) {
        chunk.patterned = filled;
        chunk.tensor = tensor != nullptr ? *tensor : LedgerEntry{};
    }
}

// False: not filled, or not to be.
bool GuardedMemory::look_and_fill(Window& window, Stream stream) {
    const ByteRange pages{window.pages, window.pages + window.pages_bytes};
    const ByteRange tensor{window.block, window.block + window.requested_bytes};
    const bool looks = window.patterned && !gaps_of(window).empty();
    const bool fills = scrubs_ || poisons_;
    if (!looks) { return fills && driver_.fill(device_, stream, {pages}, kPattern).ok(); }
    CheckAndFill queued =
        fills ? driver_.check_and_fill(device_, stream, pages, tensor, kPattern)
              : CheckAndFill{driver_.check(device_, stream, gaps_of(window), kPattern), {}};
    if (queued.check) { window.check = *queued.check; }
    unchecked_count_ += queued.check ? 0 : 1;
    return fills && queued.filled.ok();
}

void GuardedMemory::renew(Address address, Bytes requested_bytes) {
    Window& window = windows_.at(address);
    window.requested_bytes = requested_bytes;
    window.patterned = false;
}

// Its stream has passed the checks.
void GuardedMemory::collect(Window& window) {
    for (GuardedChunk& chunk : window.chunks) { end_look(chunk, Passage::Known); }
    const bool spoiled = is_spoiled(window);
    for (const GuardedChunk& chunk : window.chunks) { spoiled_.erase(chunk.handle); }
    if (window.check == Check{}) { return; }
    std::vector<Finding> findings;
    const Status status = driver_.passed_check(std::exchange(window.check, {}), findings);
    unchecked_count_ += status.ok() ? 0 : 1;
    if (spoiled) { return; }
    for (const Finding& finding : findings) {
        Violation violation;
        violation.kind = finding.first_bad >= window.block ? Violation::Kind::Overrun
                                                           : Violation::Kind::Underrun;
        if (const LedgerEntry* tensor = ledger_.gone(window.block)) { violation.tensor = *tensor; }
        violation.first_bad = finding.first_bad;
        violation.bad_bytes = finding.bad_bytes;
        violation.found = finding.found;
        ledger_.add(violation);
    }
}

Status GuardedMemory::give_back(const Segment& segment) {
    auto node = windows_.extract(segment.address);
    Window& window = node.mapped();
    collect(window);
    in_use_bytes_ -= window.pages_bytes;
    ledger_.quarantined(window.block);
    take_moved();
    keep_within(0);
    return move(window) ? Status() : close(window, Addresses::Used);
}

BaseAllocation GuardedMemory::pages(Address address) const {
    const Window& window = windows_.at(address);
    return {window.pages, window.pages_bytes};
}

ByteRange GuardedMemory::window(Address address) const {
    const Window& window = windows_.at(address);
    return {window.begin, window.begin + window.bytes};
}

Status GuardedMemory::audit() const {
    std::vector<ByteRange> taken;
    Bytes pages_bytes = 0;
    Bytes stuck_bytes = 0;
    const auto look_at = [&](const Window& window, Bytes& sum) -> Status {
        Bytes chunk_bytes = 0;
        for (const GuardedChunk& chunk : window.chunks) { chunk_bytes += chunk.bytes; }
        sum += chunk_bytes;
        taken.push_back({window.begin, window.begin + window.bytes});
        if (chunk_bytes != window.pages_bytes) {
            return broken_invariant("sum(chunk.bytes) == window pages", chunk_bytes,
                                    window.pages_bytes);
        }
        if (window.block < window.pages ||
            window.block + window.requested_bytes > window.pages + window.pages_bytes) {
            return broken_invariant("a block lies in its pages", window.block, window.pages);
        }
        return {};
    };
    for (const auto& [block, window] : windows_) {
        if (Status status = look_at(window, pages_bytes); !status.ok()) { return status; }
        if (block != window.block) {
            return broken_invariant("a window is found by its block", block, window.block);
        }
    }
    for (const auto& [window, addresses] : stuck_) {
        if (Status status = look_at(window, stuck_bytes); !status.ok()) { return status; }
    }
    Bytes moving_bytes = 0;
    for (const auto& [key, moves] : moving_) {
        for (const auto& move : moves) {
            moving_bytes += move->window.pages_bytes;
            const Address begin = move->window.begin;
            if (begin != 0) { taken.push_back({begin, begin + move->window.bytes}); }
            if (move->fresh != 0) {
                taken.push_back({move->fresh, move->fresh + move->window.bytes});
            }
        }
    }
    if (moving_bytes != moving_bytes_) {
        return broken_invariant("sum(moving pages) == moving", moving_bytes, moving_bytes_);
    }
    cache_.add_windows(page_bytes_, taken);
    if (pages_bytes != in_use_bytes_) {
        return broken_invariant("sum(window pages) == in use", pages_bytes, in_use_bytes_);
    }
    if (stuck_bytes != stuck_bytes_) {
        return broken_invariant("sum(stuck pages) == stuck", stuck_bytes, stuck_bytes_);
    }
    if (cache_.recounted_bytes() != cache_.bytes()) {
        return broken_invariant("sum(cached chunk.bytes) == cached", cache_.recounted_bytes(),
                                cache_.bytes());
    }
    return addresses_.audit(taken);
}

}  // namespace gma
