#include "core/guarded_memory.h"

#include <algorithm>
#include <utility>

#include "core/segment_store.h"
#include "core/usable_stream.h"

namespace gma {

GuardedMemory::GuardedMemory(Driver& driver, int device, DeviceProperties properties,
                             const Options& options, Ledger& ledger)
    : driver_(driver),
      device_(device),
      page_bytes_(properties.page_bytes),
      alignment_(std::min(Bytes{options.guard_alignment}, properties.page_bytes)),
      against_lower_(options.guard == "lower"),
      poisons_(options.poison == "on"),
      scrubs_(options.scrub == "on"),
      ledger_(ledger),
      addresses_(driver, device, properties.page_bytes, options.quarantine_gb * 1_GiB) {}

GuardedMemory::~GuardedMemory() {
    retry_stuck();
    static_cast<void>(release_cached(kMaxRequestBytes));
}

BaseAllocation GuardedMemory::extent(const Segment& segment) const {
    return pages(segment.address);
}

Result<Address> GuardedMemory::obtain(Bytes block_bytes, const Request& request) {
    if (in_use_bytes_ + stuck_bytes_ + held_bytes(block_bytes) > limit_bytes_) {
        return Status(Code::OutOfMemory, "the limit allows no more memory");
    }
    Result<Window> window = open(block_bytes, request);
    if (!window) { return window.status(); }
    Status status = gather(*window);
    if (status.ok()) { status = map(*window); }
    // Not while a graph is captured: a fill would become a part of it, or break it.
    const bool may_fill = !request.for_graph && !request.capturing;
    if (status.ok() && may_fill) { status = fill_fresh(*window); }
    if (!status.ok()) {
        static_cast<void>(close(*window, Addresses::Unused));
        return status;
    }
    if (may_fill) { check_reused(*window); }
    in_use_bytes_ += window->pages_bytes;
    in_use_peak_bytes_ = std::max(in_use_peak_bytes_, in_use_bytes_);
    const Address block = window->block;
    windows_.emplace(block, std::move(*window));
    return block;
}

Result<GuardedMemory::Window> GuardedMemory::open(Bytes block_bytes, const Request& request) {
    Window window;
    window.pages_bytes = held_bytes(block_bytes);
    window.bytes = window.pages_bytes + 2 * page_bytes_;
    window.requested_bytes = request.requested_bytes;
    window.stream = request.stream;
    window.stream_id = request.stream_id;
    Result<Address> begin = addresses_.take(window.bytes);
    if (!begin) { return begin.status(); }
    window.begin = *begin;
    window.pages = *begin + page_bytes_;
    window.block = against_lower_ ? window.pages : window.pages + window.pages_bytes - block_bytes;
    return window;
}

// The driver's cost is per handle, for each pair: so one of just so many bytes. Where that would be
// more than is kept it takes the place of others, unless to give back so much takes longer than to
// map some of them.
Status GuardedMemory::gather(Window& window) {
    for (Bytes missing = window.pages_bytes; missing > 0;) {
        const Bytes wanted = std::min(missing, kMaxChunkBytes);
        GuardedChunk chunk = cache_.take(window.stream_id, wanted, wanted);
        const Bytes excess = chunk.bytes > 0 ? 0 : excess_bytes(window, missing, wanted);
        if (excess > 0 && wanted > kMaxReplacedBytes) {
            chunk = cache_.take(window.stream_id, wanted / 4, wanted);
        }
        if (chunk.bytes == 0) {
            Result<GuardedChunk> made = new_chunk(wanted, excess);
            if (!made) { return made.status(); }
            chunk = *made;
        }
        window.chunks.push_back(chunk);
        missing -= chunk.bytes;
    }
    return {};
}

// How much more than is kept would be held with a new handle.
Bytes GuardedMemory::excess_bytes(const Window& window, Bytes missing_bytes,
                                  Bytes new_bytes) const {
    const Bytes in_use = in_use_bytes_ + window.pages_bytes - missing_bytes;
    const Bytes most = most_held_bytes(std::max(in_use_peak_bytes_, in_use + missing_bytes));
    const Bytes held = in_use + cache_.bytes() + stuck_bytes_ + new_bytes;
    return held - std::min(held, most);
}

Result<GuardedChunk> GuardedMemory::new_chunk(Bytes bytes, Bytes excess_bytes) {
    if (excess_bytes > 0) {
        if (Result<Bytes> gone = release_cached(excess_bytes); !gone) { return gone.status(); }
    }
    return create_chunk(bytes);
}

// A card that is full may have room for what the cache holds.
Result<GuardedChunk> GuardedMemory::create_chunk(Bytes bytes) {
    Result<Handle> handle = driver_.create(device_, bytes, Reach::Private);
    if (!handle && handle.status().code() == Code::OutOfMemory && cache_.bytes() > 0) {
        if (Result<Bytes> gone = release_cached(kMaxRequestBytes); !gone) { return gone.status(); }
        handle = driver_.create(device_, bytes, Reach::Private);
    }
    if (!handle) { return handle.status(); }
    ++created_count_;
    return GuardedChunk{*handle, bytes, false, false, {}, 0};
}

Status GuardedMemory::map(Window& window) {
    Address at = window.pages;
    for (GuardedChunk& chunk : window.chunks) {
        Status status = driver_.map(at, chunk.bytes, chunk.handle);
        if (!status.ok()) { return status; }
        chunk.mapped = true;
        at += chunk.bytes;
    }
    return driver_.set_access(device_, window.pages, window.pages_bytes, Reach::Private);
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

void GuardedMemory::check_reused(Window& window) {
    std::vector<ByteRange> ranges;
    Address at = window.pages;
    for (const GuardedChunk& chunk : window.chunks) {
        if (chunk.patterned) {
            ranges.push_back({at, at + chunk.bytes});
            window.reused.emplace_back(at, chunk);
        }
        at += chunk.bytes;
    }
    if (ranges.empty()) { return; }
    Result<Check> check = driver_.check(device_, window.stream, ranges, kPattern);
    if (!check) {
        ++unchecked_count_;
        window.reused.clear();
        return;
    }
    window.reused_check = *check;
    reused_blocks_.push_back(window.block);
}

// To wait costs 20 times what asking does, and most are done.
Result<bool> GuardedMemory::ask(Check check, bool wait, std::vector<Finding>& findings) {
    Result<bool> done = driver_.checked(check, false, findings);
    return wait && done && !*done ? driver_.checked(check, true, findings) : done;
}

// The last tensor's addresses are told, not the new one's.
bool GuardedMemory::collect_reused(Window& window, bool wait) {
    if (window.reused_check == Check{}) { return true; }
    std::vector<Finding> findings;
    const Result<bool> done = ask(window.reused_check, wait, findings);
    if (done && !*done) { return false; }
    window.reused_check = {};
    unchecked_count_ += done ? 0 : 1;
    for (const Finding& finding : findings) {
        const auto& [at, chunk] = window.reused[finding.range];
        Violation violation;
        violation.kind = Violation::Kind::WriteAfterFree;
        violation.tensor = chunk.tensor;
        violation.first_bad = chunk.last_begin + (finding.first_bad - at);
        violation.bad_bytes = finding.bad_bytes;
        violation.found = finding.found;
        ledger_.add(violation);
        window.spoiled = true;
    }
    window.reused.clear();
    return true;
}

void GuardedMemory::collect_reused(bool wait) {
    while (!reused_blocks_.empty()) {
        const auto it = windows_.find(reused_blocks_.front());
        if (it != windows_.end() && !collect_reused(it->second, wait)) { return; }
        reused_blocks_.pop_front();
    }
}

Status GuardedMemory::unmap(Window& window) {
    Status first;
    Address at = window.pages;
    for (GuardedChunk& chunk : window.chunks) {
        const Address address = std::exchange(at, at + chunk.bytes);
        if (!chunk.mapped) { continue; }
        Status status = driver_.unmap(address, chunk.bytes);
        chunk.mapped = !status.ok();
        if (window.swept) { chunk.last_begin = address; }
        if (!status.ok() && first.ok()) { first = std::move(status); }
    }
    return first;
}

// What the driver refuses to unmap is stuck, and with it the window's addresses.
Status GuardedMemory::close(Window& window, Addresses addresses) {
    Status status = unmap(window);
    if (!status.ok()) {
        stuck_bytes_ += window.pages_bytes;
        stuck_.emplace_back(std::move(window), addresses);
        return status;
    }
    for (const GuardedChunk& chunk : window.chunks) { cache_.put(window.stream_id, chunk); }
    window.chunks.clear();
    if (addresses == Addresses::Unused) {
        addresses_.give_back(window.begin, window.bytes);
    } else {
        quarantined_[window.begin] = window.block;
        for (Address begin : addresses_.retire(window.begin, window.bytes)) {
            const auto expired = quarantined_.extract(begin);
            if (!expired.empty()) { ledger_.expired(expired.mapped()); }
        }
    }
    const Bytes kept = kept_bytes();
    if (cache_.bytes() > kept) { static_cast<void>(release_cached(cache_.bytes() - kept)); }
    return status;
}

// In all: no more than the limit allows, and than was in use at most and a little more.
Bytes GuardedMemory::most_held_bytes(Bytes in_use_peak_bytes) const {
    const Bytes more = std::max(kKeptBytes, in_use_peak_bytes / kKeptShare);
    return std::min(limit_bytes_, in_use_peak_bytes + more);
}

// Of that, in the cache.
Bytes GuardedMemory::kept_bytes() const {
    const Bytes most = most_held_bytes(in_use_peak_bytes_);
    return most - std::min(most, in_use_bytes_ + stuck_bytes_);
}

void GuardedMemory::retry_stuck() {
    for (auto& [window, addresses] : std::exchange(stuck_, {})) {
        stuck_bytes_ -= window.pages_bytes;
        static_cast<void>(close(window, addresses));
    }
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
    return window.patterned && !window.swept && !window.spoiled ? gaps_of(window)
                                                                : std::vector<ByteRange>{};
}

void GuardedMemory::sweep(const Segment& segment) {
    Window& window = windows_.at(segment.address);
    if (std::exchange(window.swept, true)) { return; }
    const auto stream = usable_stream(driver_, device_, window.stream, window.stream_id);
    if (const auto gaps = gaps_of(window); window.patterned && !gaps.empty()) {
        Result<Check> check = stream ? driver_.check(device_, stream->stream, gaps, kPattern)
                                     : Result<Check>(stream.status());
        if (check) { window.check = *check; }
        unchecked_count_ += check ? 0 : 1;
    }
    bool filled = false;
    if (stream && (scrubs_ || poisons_)) {
        const ByteRange pages{window.pages, window.pages + window.pages_bytes};
        filled = driver_.fill(device_, stream->stream, {pages}, kPattern).ok();
    }
    if (stream) { filled &= order_before_others(driver_, device_, *stream).ok(); }
    const LedgerEntry* tensor = ledger_.gone(window.block);
    for (GuardedChunk& chunk : window.chunks) {
        chunk.patterned = filled;
        chunk.tensor = tensor != nullptr ? *tensor : LedgerEntry{};
    }
}

void GuardedMemory::renew(Address address, Bytes requested_bytes) {
    Window& window = windows_.at(address);
    window.requested_bytes = requested_bytes;
    window.patterned = false;
}

// Its stream has passed the checks.
void GuardedMemory::collect(Window& window) {
    collect_reused(window, true);
    if (window.check == Check{}) { return; }
    std::vector<Finding> findings;
    const Result<bool> done = ask(std::exchange(window.check, {}), true, findings);
    unchecked_count_ += done ? 0 : 1;
    if (window.spoiled) { return; }
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
    return close(window, Addresses::Used);
}

BaseAllocation GuardedMemory::pages(Address address) const {
    const Window& window = windows_.at(address);
    return {window.pages, window.pages_bytes};
}

ByteRange GuardedMemory::window(Address address) const {
    const Window& window = windows_.at(address);
    return {window.begin, window.begin + window.bytes};
}

Result<Bytes> GuardedMemory::release_cached(Bytes bytes) {
    Bytes gone = 0;
    while (gone < bytes && cache_.bytes() > 0) {
        const GuardedChunk chunk = cache_.take_oldest();
        gone += chunk.bytes;
        Status status = driver_.release(device_, chunk.handle, chunk.bytes);
        ++(status.ok() ? released_count_ : leaked_count_);
        if (!status.ok()) { return status; }
    }
    return gone;
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
