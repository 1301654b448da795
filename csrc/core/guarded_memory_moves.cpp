// What goes through the mapping thread, and what was stuck.
#include "core/guarded_memory.h"

#include <algorithm>
#include <utility>

namespace gma {

// Through the mapping thread into a fresh window, or only out of this one where not all of it may
// be kept or it is several handles. False: the caller closes it.
bool GuardedMemory::move(Window& window) {
    if (!moves_ || !thread_.has_room()) { return false; }
    keep_within(window.pages_bytes);
    const bool may_stay = cached_bytes() + window.pages_bytes <= kept_bytes();
    Move move;
    if (may_stay && window.chunks.size() == 1) {
        const Result<Address> fresh = addresses_.take(window.bytes);
        move.fresh = fresh ? *fresh : 0;
    }
    if (unmaps_at_once_) {
        if (move.fresh == 0) { return false; }
        const bool is_out = [&] {
            const MappingThread::Turn turn(thread_);
            return unmap_chunks(driver_, window.pages, LastPlace::Note, window.chunks).ok();
        }();
        if (!is_out) {
            addresses_.give_back(move.fresh, window.bytes);
            return false;
        }
        retire(window);
    }
    move.job = std::make_unique<MappingJob>();
    move.job->pages = window.pages;
    move.job->last = LastPlace::Note;
    move.job->fresh_pages = move.fresh == 0 ? 0 : move.fresh + page_bytes_;
    move.job->chunks = std::move(window.chunks);
    move.window = std::move(window);
    moving_bytes_ += move.window.pages_bytes;
    MappingJob* const job = move.job.get();
    moving_.emplace(job, std::move(move));
    thread_.start(job);
    return true;
}

// What the mapping thread is done with goes where it belongs.
void GuardedMemory::take_moved() {
    MappingQueue finished = thread_.take_finished();
    while (const MappingJob* job = finished.pop()) {
        auto node = moving_.extract(job);
        Move& move = node.mapped();
        moving_bytes_ -= move.window.pages_bytes;
        move.window.chunks = std::move(move.job->chunks);
        if (move.job->end == MappingJob::End::OldRefused) {
            if (move.fresh != 0) { addresses_.give_back(move.fresh, move.window.bytes); }
            stick(std::move(move.window), Addresses::Used);
            continue;
        }
        if (move.job->end == MappingJob::End::FreshRefused) {
            Window fresh = fresh_window(move.fresh, move.window.pages_bytes);
            fresh.chunks = std::exchange(move.window.chunks, {});
            fresh.stream_id = move.window.stream_id;
            stick(std::move(fresh), Addresses::Unused);
        } else if (move.job->end == MappingJob::End::Mapped) {
            move.window.chunks.front().window = move.fresh;
        } else if (move.fresh != 0) {
            addresses_.give_back(move.fresh, move.window.bytes);
        }
        put(move.window, Addresses::Used);
    }
}

// False: nothing is on its way.
bool GuardedMemory::wait_moved() {
    if (moving_.empty() || !thread_.wait_finished()) { return false; }
    take_moved();
    return true;
}

// Whether a handle that would do is on its way. The thread changes nothing of a job's handles that
// is read here.
bool GuardedMemory::is_coming(std::uint64_t stream_id, Bytes least_bytes, Bytes most_bytes) const {
    return std::any_of(moving_.begin(), moving_.end(), [&](const auto& entry) {
        const Move& move = entry.second;
        const std::vector<GuardedChunk>& chunks = move.job->chunks;
        return move.window.stream_id == stream_id &&
               std::any_of(chunks.begin(), chunks.end(), [&](const GuardedChunk& chunk) {
                   return least_bytes <= chunk.bytes && chunk.bytes <= most_bytes;
               });
    });
}

Bytes GuardedMemory::quarantined_bytes() const {
    Bytes bytes = addresses_.quarantined_bytes();
    for (const auto& [job, move] : moving_) {
        bytes += move.window.begin == 0 ? 0 : move.window.bytes;
    }
    return bytes;
}

void GuardedMemory::settle() {
    while (wait_moved()) {}
}

// Which nobody has seen.
GuardedMemory::Window GuardedMemory::fresh_window(Address begin, Bytes pages_bytes) const {
    Window window;
    window.begin = begin;
    window.bytes = pages_bytes + 2 * page_bytes_;
    window.pages = begin + page_bytes_;
    window.pages_bytes = pages_bytes;
    window.block = window.pages;
    return window;
}

void GuardedMemory::retry_stuck() {
    settle();
    for (auto& [window, addresses] : std::exchange(stuck_, {})) {
        stuck_bytes_ -= window.pages_bytes;
        static_cast<void>(close(window, addresses));
    }
}

}  // namespace gma
