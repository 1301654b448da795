// Which handles a window gets, and what is kept for the next ones.
#include "core/guarded_memory.h"

#include <algorithm>
#include <utility>

namespace gma {

// The driver's cost is per handle, for each pair: so one of just so many bytes. Where that would be
// more than is kept it takes the place of others, unless to give back so much takes longer than to
// map some of them.
Status GuardedMemory::gather(Window& window) {
    for (Bytes missing = window.pages_bytes; missing > 0;) {
        if (Status status = check_limit(window); !status.ok()) { return status; }
        const Bytes wanted = std::min(missing, kMaxChunkBytes);
        GuardedChunk chunk = cache_.take(window.stream_id, wanted, wanted);
        const Bytes excess = chunk.bytes > 0 ? 0 : excess_bytes(window, missing, wanted);
        const Bytes least = wanted > kMaxReplacedBytes ? wanted / 4 : wanted;
        Move* const move = excess > 0 ? coming(window.stream_id, least, wanted) : nullptr;
        if (move != nullptr && hasten(move)) { continue; }
        if (excess > 0 && least < wanted) { chunk = cache_.take(window.stream_id, least, wanted); }
        if (chunk.bytes == 0) {
            Result<GuardedChunk> made = new_chunk(window, wanted, excess);
            if (!made) { return made.status(); }
            chunk = *made;
        }
        if (chunk.window != 0 && chunk.bytes != window.pages_bytes && !dissolve(chunk)) {
            continue;
        }
        window.chunks.push_back(chunk);
        missing -= chunk.bytes;
    }
    return {};
}

Status GuardedMemory::check_limit(const Window& window) const {
    if (in_use_bytes_ + stuck_bytes_ + window.pages_bytes <= limit_bytes_) { return {}; }
    return {Code::OutOfMemory, "the limit allows no more memory"};
}

// Out of the fresh window that it is mapped into, which nobody has seen. False: it is stuck there.
bool GuardedMemory::dissolve(GuardedChunk& chunk) {
    if (chunk.window == 0) { return true; }
    end_look(chunk, Passage::Wait);
    Window window = fresh_window(std::exchange(chunk.window, 0), chunk.bytes);
    window.stream_id = chunk.stream_id;
    window.chunks.push_back(chunk);
    const bool is_out = [&] {
        const MappingThread::Turn turn(thread_);
        return unmap_chunks(driver_, window.pages, LastPlace::Keep, window.chunks).ok();
    }();
    if (!is_out) {
        stick(std::move(window), Addresses::Unused);
        return false;
    }
    chunk = window.chunks.front();
    addresses_.give_back(window.begin, window.bytes);
    return true;
}

// How much more than is kept would be held with a new handle.
Bytes GuardedMemory::excess_bytes(const Window& window, Bytes missing_bytes,
                                  Bytes new_bytes) const {
    const Bytes in_use = in_use_bytes_ + window.pages_bytes - missing_bytes;
    const Bytes most = most_held_bytes(std::max(in_use_peak_bytes_, in_use + missing_bytes));
    const Bytes held = in_use + cached_bytes() + stuck_bytes_ + new_bytes;
    return held - std::min(held, most);
}

// What is stuck in its fresh window makes no room.
Result<GuardedChunk> GuardedMemory::new_chunk(const Window& window, Bytes bytes,
                                              Bytes excess_bytes) {
    if (excess_bytes > 0) {
        if (Result<Bytes> gone = release_cached(excess_bytes); !gone) { return gone.status(); }
        if (Status status = check_limit(window); !status.ok()) { return status; }
    }
    return create_chunk(bytes);
}

// A card that is full may have room for what the cache holds.
Result<GuardedChunk> GuardedMemory::create_chunk(Bytes bytes) {
    const auto create = [&] {
        const MappingThread::Turn turn(thread_);
        return driver_.create(device_, bytes, Reach::Private);
    };
    Result<Handle> handle = create();
    if (!handle && handle.status().code() == Code::OutOfMemory && cached_bytes() > 0) {
        if (Result<Bytes> gone = release_cached(kMaxRequestBytes); !gone) { return gone.status(); }
        handle = create();
    }
    if (!handle) { return handle.status(); }
    ++created_count_;
    GuardedChunk chunk;
    chunk.handle = *handle;
    chunk.bytes = bytes;
    return chunk;
}

// Gives back what is above what may be kept, with so much more to come; not what is on its way.
void GuardedMemory::keep_within(Bytes more_bytes) {
    const Bytes kept = kept_bytes();
    const Bytes wanted = cached_bytes() + more_bytes;
    if (wanted <= kept) { return; }
    static_cast<void>(release(wanted - kept, Moving::Leave));
}

// In all: no more than the limit allows, and than was in use at most and a little more.
Bytes GuardedMemory::most_held_bytes(Bytes in_use_peak_bytes) const {
    const Bytes more = std::max(least_kept_bytes_, in_use_peak_bytes / kKeptShare);
    return std::min(limit_bytes_, in_use_peak_bytes + more);
}

// Of that, in the cache.
Bytes GuardedMemory::kept_bytes() const {
    const Bytes most = most_held_bytes(in_use_peak_bytes_);
    return most - std::min(most, in_use_bytes_ + stuck_bytes_);
}

Result<Bytes> GuardedMemory::release(Bytes bytes, Moving moving) {
    Bytes gone = 0;
    const auto has_cached = [&] {
        return cache_.bytes() > 0 || (moving == Moving::Await && !moving_.empty() &&
                                      hasten(moving_.begin()->second.back().get()));
    };
    while (gone < bytes && has_cached()) {
        GuardedChunk chunk = cache_.take_oldest();
        if (chunk.bytes == 0 || !dissolve(chunk)) { continue; }
        gone += chunk.bytes;
        spoiled_.erase(chunk.handle);
        const Status status = [&] {
            const MappingThread::Turn turn(thread_);
            return driver_.release(device_, chunk.handle, chunk.bytes);
        }();
        ++(status.ok() ? released_count_ : leaked_count_);
        if (!status.ok()) { return status; }
    }
    return gone;
}

}  // namespace gma
