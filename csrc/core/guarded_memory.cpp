#include "core/guarded_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/segment.h"
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

GuardedMemory::~GuardedMemory() { static_cast<void>(release_cached(kMaxRequestBytes)); }

Bytes GuardedMemory::block_bytes(Bytes requested_bytes) const {
    return round_up(std::max(requested_bytes, Bytes{1}), alignment_);
}

Result<Address> GuardedMemory::obtain(Bytes block_bytes, const Request& request) {
    Result<Window> window = open(block_bytes, request);
    if (!window) { return window.status(); }
    Status status = gather(*window);
    if (status.ok()) { status = map(*window); }
    if (status.ok()) { status = fill_fresh(*window, request); }
    if (!status.ok()) {
        static_cast<void>(unmap(*window));
        close(*window);
        if (!window->broken) { addresses_.give_back(window->begin, window->bytes); }
        return status;
    }
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

Status GuardedMemory::gather(Window& window) {
    for (Bytes missing = window.pages_bytes; missing > 0;) {
        Result<GuardedChunk> chunk = next_chunk(window, missing);
        if (!chunk) { return chunk.status(); }
        window.chunks.push_back(*chunk);
        missing -= chunk->bytes;
    }
    return {};
}

// One of the cache that is large enough not to make many of the window, or a new one, or whatever
// the cache has where the limit allows no new one.
Result<GuardedChunk> GuardedMemory::next_chunk(const Window& window, Bytes missing_bytes) {
    const Bytes wanted =
        std::min(std::bit_floor(missing_bytes / page_bytes_) * page_bytes_, kMaxChunkBytes);
    GuardedChunk cached = cache_.take(window.stream_id, std::max(wanted / 4, page_bytes_), wanted);
    if (cached.bytes > 0) { return cached; }
    Bytes held = in_use_bytes_ + cache_.bytes() + wanted;
    for (const GuardedChunk& chunk : window.chunks) { held += chunk.bytes; }
    if (held > limit_bytes_) {
        if (held - limit_bytes_ > cache_.bytes()) {
            cached = cache_.take(window.stream_id, page_bytes_, wanted);
            if (cached.bytes > 0) { return cached; }
            return Status(Code::OutOfMemory, "the limit allows no more memory");
        }
        if (Result<Bytes> gone = release_cached(held - limit_bytes_); !gone) {
            return gone.status();
        }
    }
    return create_chunk(wanted);
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
    return GuardedChunk{*handle, bytes, false, false};
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

// Not while a graph is captured: a fill would become a part of it, or break it.
Status GuardedMemory::fill_fresh(Window& window, const Request& request) {
    if (request.for_graph || request.capturing) { return {}; }
    std::vector<ByteRange> ranges = poisons_ ? std::vector<ByteRange>{} : gaps_of(window);
    Address at = window.pages;
    for (GuardedChunk& chunk : window.chunks) {
        if (poisons_ && !chunk.patterned) { ranges.push_back({at, at + chunk.bytes}); }
        at += chunk.bytes;
    }
    window.patterned = true;
    return ranges.empty() ? Status() : driver_.fill(device_, window.stream, ranges, kPattern);
}

// A chunk that the driver refuses to unmap is lost, and its addresses are nobody's any more.
Status GuardedMemory::unmap(Window& window) {
    Status first;
    Address at = window.pages;
    for (GuardedChunk& chunk : window.chunks) {
        const Address address = std::exchange(at, at + chunk.bytes);
        if (!chunk.mapped) { continue; }
        Status status = driver_.unmap(address, chunk.bytes);
        chunk.mapped = !status.ok();
        if (status.ok()) { continue; }
        window.broken = true;
        if (first.ok()) { first = std::move(status); }
    }
    return first;
}

// The handles that are mapped nowhere go to the cache.
void GuardedMemory::close(Window& window) {
    for (const GuardedChunk& chunk : window.chunks) {
        if (chunk.mapped) {
            ++leaked_count_;
        } else {
            cache_.put(window.stream_id, chunk);
        }
    }
    window.chunks.clear();
    const Bytes kept = std::max(kKeptBytes, in_use_peak_bytes_ / kKeptShare);
    if (cache_.bytes() > kept) { static_cast<void>(release_cached(cache_.bytes() - kept)); }
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
    if (it == windows_.end() || !it->second.patterned || it->second.swept) { return {}; }
    return gaps_of(it->second);
}

void GuardedMemory::sweep(const Segment& segment) {
    Window& window = windows_.at(segment.address);
    if (std::exchange(window.swept, true)) { return; }
    const Stream stream = usable_stream(driver_, device_, window.stream, window.stream_id);
    if (const auto gaps = gaps_of(window); window.patterned && !gaps.empty()) {
        Result<Check> check = driver_.check(device_, stream, gaps, kPattern);
        if (check) { window.check = *check; }
        unchecked_count_ += check ? 0 : 1;
    }
    bool filled = false;
    if (scrubs_ || poisons_) {
        const ByteRange pages{window.pages, window.pages + window.pages_bytes};
        filled = driver_.fill(device_, stream, {pages}, kPattern).ok();
    }
    for (GuardedChunk& chunk : window.chunks) { chunk.patterned = filled; }
}

void GuardedMemory::renew(const Segment& segment, const Request& request) {
    Window& window = windows_.at(segment.address);
    window.requested_bytes = request.requested_bytes;
    window.patterned = false;  // a graph has written what it likes
}

// Its stream has passed the check.
void GuardedMemory::collect(Window& window) {
    if (window.check == Check{}) { return; }
    const std::vector<ByteRange> gaps = gaps_of(window);
    std::vector<Finding> findings;
    const Result<bool> done = driver_.checked(std::exchange(window.check, {}), true, findings);
    unchecked_count_ += done ? 0 : 1;
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
    Status status = unmap(window);
    in_use_bytes_ -= window.pages_bytes;
    close(window);
    ledger_.quarantined(window.block);
    if (window.broken) { return status; }
    quarantined_[window.begin] = window.block;
    for (Address begin : addresses_.retire(window.begin, window.bytes)) {
        const auto expired = quarantined_.extract(begin);
        ledger_.expired(expired.mapped());
    }
    return status;
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

}  // namespace gma
