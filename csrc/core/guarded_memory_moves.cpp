// What goes through the mapping thread, and what was stuck.
#include "core/guarded_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace gma {

// Through the mapping thread into a fresh window, or only out of this one where not all of it may
// be kept or it is several handles. False: the caller closes it.
bool GuardedMemory::move(Window& window) {
    if (!moves_ || !thread_.has_room()) { return false; }
    keep_within(window.pages_bytes);
    const bool may_stay = cached_bytes() + window.pages_bytes <= kept_bytes();
    auto move = std::make_unique<Move>();
    if (may_stay && window.chunks.size() == 1) {
        const Result<Address> fresh = addresses_.take(window.bytes);
        move->fresh = fresh ? *fresh : 0;
    }
    if (unmaps_at_once_) {
        if (move->fresh == 0) { return false; }
        const bool is_out = [&] {
            const MappingThread::Turn turn(thread_);
            return unmap_chunks(driver_, window.pages, LastPlace::Note, window.chunks).ok();
        }();
        if (!is_out) {
            addresses_.give_back(move->fresh, window.bytes);
            return false;
        }
        retire(window);
    }
    move->pages = window.pages;
    move->last = LastPlace::Note;
    move->fresh_pages = move->fresh == 0 ? 0 : move->fresh + page_bytes_;
    move->chunks = std::move(window.chunks);
    move->key = {window.stream_id, move->chunks.front().bytes};
    move->window = std::move(window);
    moving_bytes_ += move->window.pages_bytes;
    MappingJob* const job = move.get();
    moving_[move->key].push_back(std::move(move));
    thread_.start(job);
    return true;
}

// What the mapping thread is done with goes where it belongs.
void GuardedMemory::take_moved() {
    MappingQueue finished = thread_.take_finished();
    while (MappingJob* job = finished.pop()) { end_move(job); }
}

void GuardedMemory::end_move(MappingJob* job) {
    const auto at = moving_.find(static_cast<Move*>(job)->key);
    std::deque<std::unique_ptr<Move>>& moves = at->second;
    const auto found = std::find_if(moves.begin(), moves.end(),
                                    [job](const auto& move) { return move.get() == job; });
    const std::unique_ptr<Move> move = std::move(*found);
    moves.erase(found);
    if (moves.empty()) { moving_.erase(at); }
    moving_bytes_ -= move->window.pages_bytes;
    move->window.chunks = std::move(move->chunks);
    if (move->end == MappingJob::End::OldRefused) {
        if (move->fresh != 0) { addresses_.give_back(move->fresh, move->window.bytes); }
        return stick(std::move(move->window), Addresses::Used);
    }
    if (move->end == MappingJob::End::FreshRefused) {
        Window fresh = fresh_window(move->fresh, move->window.pages_bytes);
        fresh.chunks = std::exchange(move->window.chunks, {});
        fresh.stream_id = move->window.stream_id;
        stick(std::move(fresh), Addresses::Unused);
    } else if (move->end == MappingJob::End::Mapped) {
        move->window.chunks.front().window = move->fresh;
    } else if (move->fresh != 0) {
        addresses_.give_back(move->fresh, move->window.bytes);
    }
    put(move->window, Addresses::Used);
}

// False: nothing is on its way.
bool GuardedMemory::wait_moved() {
    if (moving_.empty() || !thread_.wait_finished()) { return false; }
    take_moved();
    return true;
}

// One whose handle, the first of several, would do; nullptr: there is none.
GuardedMemory::Move* GuardedMemory::coming(std::uint64_t stream_id, Bytes least_bytes,
                                           Bytes most_bytes) const {
    const auto above = moving_.upper_bound({stream_id, most_bytes});
    if (above == moving_.begin()) { return nullptr; }
    const auto& [key, moves] = *std::prev(above);
    return key.first == stream_id && key.second >= least_bytes ? moves.front().get() : nullptr;
}

// Where memory is short, what is to be had is not left to wait for all that was freed before it.
bool GuardedMemory::hasten(Move* move) {
    if (!thread_.take_back(move)) { return wait_moved(); }
    move->fresh_pages = 0;
    {
        const MappingThread::Turn turn(thread_);
        static_cast<void>(move->leave(driver_));
    }
    end_move(move);
    return true;
}

Bytes GuardedMemory::quarantined_bytes() const {
    Bytes bytes = addresses_.quarantined_bytes();
    for (const auto& [key, moves] : moving_) {
        for (const auto& move : moves) {
            bytes += move->window.begin == 0 ? 0 : move->window.bytes;
        }
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
