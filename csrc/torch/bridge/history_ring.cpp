#include "torch/bridge/history_ring.h"

#include <algorithm>

namespace gma::bridge {

void HistoryRing::go_to_next_piece() {
    std::size_t first = end_index_;
    if (first >= capacity_) {
        is_full_ = true;
        first = 0;
    }
    const std::size_t piece = first / kPieceCount;
    if (piece == pieces_.size()) {
        pieces_.push_back({std::make_unique<HistoryEntry[]>(kPieceCount), nullptr});
    }
    const std::size_t count = std::min(kPieceCount, capacity_ - first);
    next_ = pieces_[piece].entries.get();
    end_ = next_ + count;
    end_index_ = first + count;
}

HistoryRing HistoryRing::set_capacity(std::size_t entry_count) {
    if (entry_count == capacity_) { return {}; }
    HistoryRing kept;
    kept.capacity_ = entry_count;
    std::size_t left_out = size() - std::min(size(), entry_count);
    for_each([&](const HistoryEntry& entry, HistoryExtra extra) {
        if (left_out > 0) {
            --left_out;
        } else {
            kept.push(extra) = entry;
        }
    });
    return std::exchange(*this, std::move(kept));
}

void HistoryRing::exchange_extra(HistoryEntry& slot, HistoryExtra& extra) {
    const std::size_t index = next_index();  // the slot's
    Piece& piece = pieces_[index / kPieceCount];
    if (piece.extras == nullptr) { piece.extras = std::make_unique<HistoryExtra[]>(kPieceCount); }
    slot.has_extra = static_cast<bool>(extra);
    std::swap(piece.extras[index % kPieceCount], extra);
}

}  // namespace gma::bridge
