// How much new memory there may be, and in handles of what size.
#include <algorithm>
#include <bit>

#include "core/paged_strategy.h"

namespace gma {

Bytes PagedStrategy::headroom(Bytes ceiling_bytes) const {
    const Bytes ceiling = round_down(std::min(ceiling_bytes, limit_bytes_), page_bytes_);
    return ceiling > store_.reserved_bytes() ? ceiling - store_.reserved_bytes() : 0;
}

// A share of what is used; but before memory passes from one stream to another, so much at least
// that each of a few streams keeps its own: an unmap beside work of another stream takes 220 us.
Bytes PagedStrategy::budget_bytes(Bytes request_bytes, Effort effort) const {
    const Bytes peak = std::max(used_bytes_peak_, used_bytes_ + request_bytes);
    const auto slack = static_cast<Bytes>(static_cast<double>(peak) * slack_);
    const Bytes apart = std::min(stream_slack_bytes_, limit_bytes_ / kStreamSlackShare);
    if (effort < Effort::PassedIdle || cross_stream_ == CrossStream::Never || slack >= apart) {
        return peak + slack;
    }
    const auto sharers =
        std::ranges::count_if(arenas_, [](const auto& entry) { return entry.second->shared(); });
    return peak + (sharers > 1 ? apart : slack);
}

// A large request is laid on few handles, as long as free memory is in few pieces: the ends of a
// piece lie on handles that blocks hold, and what they waste shall not exceed the slack by much.
Bytes PagedStrategy::large_request_chunk_bytes(Bytes request_bytes, Bytes total) const {
    std::int64_t pieces = 0;
    for (const auto& [key, owner] : arenas_) { pieces += owner->arena.split_count(); }
    const double slack_bytes = static_cast<double>(total) * slack_;
    const auto piece_bytes = static_cast<Bytes>(
        4 * slack_bytes / static_cast<double>(std::max<std::int64_t>(pieces, 1)));
    return std::min(request_bytes * kLargeRequestShare / chunk_divisor_, piece_bytes);
}

// The cost of driver calls is per handle, so large totals get large ones, and the more so the
// larger: what one survivor can pin matters less there. Streams that take turns hand large parts of
// the memory to one another: in large pieces, the larger where pages have to move for it. Handles
// are small where memory is tight, so that what fits, fits: in the upper half of a limit that the
// user set (in all of it for several streams) or of what others leave of the card, and close to any
// limit.
Bytes PagedStrategy::new_chunk_bytes(const Request& request) {
    if (!request.capturing) { ask_card(); }
    // What was given back to the driver is expected to be wanted again, though not for ever.
    const Bytes held = store_.reserved_bytes() + request.bytes;
    const Bytes total = std::max(held, expected_bytes_);
    const double growth = std::max(1.0, static_cast<double>(total) / static_cast<double>(1_GiB));
    const Bytes factor = cross_stream_ == CrossStream::Lend ? kLendingFactor : kStreamsFactor;
    const Bytes handed = arenas_.size() > 1 ? factor : 1;
    const auto usual =
        static_cast<Bytes>(static_cast<double>(handed * total / chunk_divisor_) * growth);
    const Bytes share = std::max(usual, large_request_chunk_bytes(request.bytes, total));
    const Bytes cautious = headroom(kMaxRequestBytes) / 8;
    const bool tight = arenas_.size() > 1 || held >= limit_bytes_ / 2;
    const Bytes limited =
        tight && limit_bytes_ < total_bytes_ ? limit_bytes_ / kLimitedDivisor : share;
    const Bytes left = held >= card_room_bytes_ / 2 ? card_room_bytes_ / kLimitedDivisor : share;
    const Bytes bytes = std::min({share, max_chunk_bytes_, cautious, limited, left});
    return bytes <= page_bytes_ ? page_bytes_ : std::bit_floor(bytes / page_bytes_) * page_bytes_;
}

// How much this process could hold, had it all that the card has left. Asked anew when a sixteenth
// of that has been used since, or when memory was given back.
void PagedStrategy::ask_card() {
    if (store_.reserved_bytes() < ask_card_from_bytes_) { return; }
    const Result<CardMemory> card = driver_.card_memory(device_);
    if (!card) { return; }
    card_room_bytes_ = store_.reserved_bytes() + card->free_bytes;
    ask_card_from_bytes_ = store_.reserved_bytes() + card->free_bytes / 16;
}

}  // namespace gma
