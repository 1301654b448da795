// The last so many events of one device, compactly: a program makes millions of them, and each
// costs what it writes. A free that is done at once is one entry here and two in torch's traces.
// What most entries do not have, a context or labels, lies beside them.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gma::bridge {

inline constexpr const char* kNoCompileContext = "N/A";  // what torch's viewers expect

struct Labels {
    std::string compile_context;
    std::string metadata;
};

// In another order than the records it is made from: a compiler that copies two fields at once
// reads what has just been written as two, for which the processor has to wait.
struct HistoryEntry {
    std::size_t address = 0;
    c10::approx_time_t time = 0;
    std::size_t bytes = 0;
    std::uint32_t pool_second = 0;
    std::uint32_t pool_first = 0;  // torch counts pools from 1; these counters stay small
    void* stream = nullptr;
    std::uint8_t action = 0;
    std::int8_t device = 0;
    bool completes = false;  // FREE_REQUESTED, and FREE_COMPLETED with it
    bool has_extra = false;
};

struct HistoryExtra {
    std::shared_ptr<c10::GatheredContext> context;
    std::shared_ptr<const Labels> labels;
    explicit operator bool() const { return context != nullptr || labels != nullptr; }
};

class HistoryRing {
public:
    // The newest entries stay. Returns the ring as it was, if it changed: its end may take a while.
    HistoryRing set_capacity(std::size_t entry_count);
    // The slot for a new entry, whose has_extra is for the ring to set. What belonged to the entry
    // that had to go is in `extra` afterwards: its end may take a while.
    HistoryEntry& push(HistoryExtra& extra);
    // The same without anything beside the entry, where that is quickly done; else null.
    HistoryEntry* push_plain() {
        if (next_ == end_ || next_->has_extra) { return nullptr; }
        __builtin_prefetch(next_ + kPrefetchCount, 1);
        return next_++;
    }
    std::size_t size() const { return is_full_ ? capacity_ : next_index(); }
    template <class Visit>  // oldest first: visit(entry, extra)
    void for_each(Visit&& visit) const;

private:
    // In pieces, so that growing copies nothing.
    static constexpr std::size_t kPieceCount = 1024;
    // A lock is only let go once what was written under it has its cache line, which nobody has
    // touched since the ring came by last: that is asked for this many entries ahead.
    static constexpr std::size_t kPrefetchCount = 8;
    struct Piece {
        std::unique_ptr<HistoryEntry[]> entries;
        std::unique_ptr<HistoryExtra[]> extras;  // made when the first is needed
    };

    std::size_t next_index() const { return end_index_ - static_cast<std::size_t>(end_ - next_); }
    void go_to_next_piece();
    void exchange_extra(HistoryEntry& slot, HistoryExtra& extra);

    HistoryEntry* next_ = nullptr;  // the slot to write, in the piece that ends at end_
    HistoryEntry* end_ = nullptr;
    std::size_t end_index_ = 0;
    std::size_t capacity_ = 1;
    bool is_full_ = false;  // the next slot holds the oldest entry
    std::vector<Piece> pieces_;
};

inline HistoryEntry& HistoryRing::push(HistoryExtra& extra) {
    if (next_ == end_) [[unlikely]] { go_to_next_piece(); }
    HistoryEntry& slot = *next_;
    if (slot.has_extra || extra) { exchange_extra(slot, extra); }
    ++next_;
    return slot;
}

template <class Visit>
void HistoryRing::for_each(Visit&& visit) const {
    static const HistoryExtra kNone;
    const std::size_t count = size();
    const std::size_t oldest = is_full_ ? next_index() : 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t at = oldest + i < count ? oldest + i : oldest + i - count;
        const Piece& piece = pieces_[at / kPieceCount];
        const HistoryEntry& entry = piece.entries[at % kPieceCount];
        visit(entry, entry.has_extra ? piece.extras[at % kPieceCount] : kNone);
    }
}

}  // namespace gma::bridge
