// The last so many events of one device, compactly: a program makes millions of them, and each
// costs what it writes. A free that is done at once is one entry here and two in torch's traces.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gma::bridge {

struct Labels {
    std::string compile_context;
    std::string metadata;
};

struct HistoryEntry {
    std::size_t address = 0;
    std::size_t bytes = 0;
    void* stream = nullptr;
    c10::approx_time_t time = 0;
    std::shared_ptr<c10::GatheredContext> context;
    std::shared_ptr<const Labels> labels;
    std::uint32_t pool_first = 0;  // torch counts pools from 1; these counters stay small
    std::uint32_t pool_second = 0;
    std::uint8_t action = 0;
    std::int8_t device = 0;
    bool completes = false;  // FREE_REQUESTED, and FREE_COMPLETED with it
};

class HistoryRing {
public:
    // The newest entries stay.
    void set_capacity(std::size_t entry_count);
    void push(HistoryEntry&& entry);
    std::size_t size() const { return size_; }
    template <class Visit>  // oldest first
    void for_each(Visit&& visit) const {
        for (std::size_t i = 0; i < size_; ++i) { visit(at((oldest_ + i) % size_)); }
    }

private:
    // In pieces, so that growing copies nothing.
    static constexpr std::size_t kPieceCount = 4096;
    HistoryEntry& at(std::size_t i) { return pieces_[i / kPieceCount][i % kPieceCount]; }
    const HistoryEntry& at(std::size_t i) const {
        return pieces_[i / kPieceCount][i % kPieceCount];
    }

    std::size_t capacity_ = 1;
    std::size_t size_ = 0;
    std::size_t oldest_ = 0;  // not 0 only once it is full
    std::vector<std::vector<HistoryEntry>> pieces_;
};

inline void HistoryRing::push(HistoryEntry&& entry) {
    if (size_ == capacity_) {
        at(oldest_) = std::move(entry);
        oldest_ = oldest_ + 1 == size_ ? 0 : oldest_ + 1;
        return;
    }
    if (size_ % kPieceCount == 0) { pieces_.emplace_back().reserve(kPieceCount); }
    pieces_.back().push_back(std::move(entry));
    ++size_;
}

inline void HistoryRing::set_capacity(std::size_t entry_count) {
    if (size_ <= entry_count && oldest_ == 0) {
        capacity_ = entry_count;
        return;
    }
    HistoryRing kept;
    kept.capacity_ = entry_count;
    for (std::size_t i = size_ - std::min(size_, entry_count); i < size_; ++i) {
        kept.push(std::move(at((oldest_ + i) % size_)));
    }
    *this = std::move(kept);
}

}  // namespace gma::bridge
