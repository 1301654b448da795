// How much new memory there may be, and in handles of what size.
#include <algorithm>
#include <bit>

#include "core/paged_strategy.h"

namespace gma {

// How much this process could hold, had it all that the card has left. Asked anew when a sixteenth
// of that has been used since, when memory was given back or refused, and before a request moves
// memory, waits or fails for it: others may be gone.
void PagedStrategy::ask_card(const Request& request, Bytes missing_bytes, Effort effort) {
    const bool unknown = ask_card_from_bytes_ == 0;  // never asked, given back, refused, no answer
    const bool asks = effort == Effort::Budget || effort >= Effort::Limit || unknown;
    if (request.capturing || !asks) { return; }  // Budget has asked for the efforts in between
    const Bytes reserved = store_.reserved_bytes();
    const Bytes ceiling = effort >= Effort::Limit ? kMaxRequestBytes
                                                  : budget_bytes(request.bytes, Effort::PassedIdle);
    const Bytes wanted = std::min(missing_bytes, headroom(ceiling));
    const bool due = reserved >= ask_card_from_bytes_ && (effort == Effort::Budget || unknown);
    if (!due && headroom(room_bytes(request, effort)) >= wanted) { return; }
    const Result<CardMemory> card = driver_.card_memory(device_);
    card_room_bytes_ = card ? reserved + card->free_bytes : kMaxRequestBytes;
    ask_card_from_bytes_ = card ? reserved + card->free_bytes / 16 : 0;
}

// What may be held in all. The last of the card is left to kernels that are loaded when they are
// first used, whose libraries fail without it, until nothing else helps.
Bytes PagedStrategy::room_bytes(const Request& request, Effort effort) const {
    if (request.capturing) { return limit_bytes_; }
    const Bytes spared = std::min(kSparedBytes, card_room_bytes_ / kSparedShare);
    return std::min(limit_bytes_, card_room_bytes_ - (effort < Effort::HostWait ? spared : 0));
}

Bytes PagedStrategy::headroom(Bytes ceiling_bytes) const {
    const Bytes ceiling = round_down(std::min(ceiling_bytes, limit_bytes_), page_bytes_);
    return ceiling > store_.reserved_bytes() ? ceiling - store_.reserved_bytes() : 0;
}

// A share of what is used, and a larger one in the upper half of a limit that the user set: what
// lies below it is this process's to have, and what moves leaves pieces behind that fit less. But
// before memory passes from one stream to another, so much at least that each of a few streams
// keeps its own: an unmap beside work of another stream takes 220 us.
Bytes PagedStrategy::budget_bytes(Bytes request_bytes, Effort effort) const {
    const Bytes peak = std::max(used_bytes_peak_, used_bytes_ + request_bytes);
    auto slack = static_cast<Bytes>(static_cast<double>(peak) * slack_);
    if (limited_ && peak >= limit_bytes_ / 2) { slack *= kLimitSlackFactor; }
    const Bytes apart = std::min(stream_slack_bytes_, limit_bytes_ / kStreamSlackShare);
    if (effort < Effort::PassedIdle || cross_stream_ == CrossStream::Never || slack >= apart) {
        return peak + slack;
    }
    const auto sharers =
        std::ranges::count_if(arenas_, [](const auto& entry) { return entry.second->shared(); });
    return peak + (sharers > 1 ? apart : slack);
}

// No window can be filled within the budget, and the card need not be asked: streams that live on
// one another's memory come here with two requests of three.
bool PagedStrategy::budget_is_used_up(const Request& request) const {
    if (request.capturing || !store_.spares().empty()) { return false; }
    if (store_.reserved_bytes() >= ask_card_from_bytes_) { return false; }  // or never asked
    const Effort passed = Effort::PassedIdle;
    return headroom(budget_bytes(request.bytes, Effort::Budget)) == 0 &&
           headroom(room_bytes(request, passed)) >= headroom(budget_bytes(request.bytes, passed));
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
// are small where memory is tight, so that what fits, fits: a 4096th of the room from a quarter of
// it on, twice as large for each halving below; for several streams, to which each handle costs
// more, in the room's upper half, and in all of a limit that the user set.
Bytes PagedStrategy::new_chunk_bytes(const Request& request) const {
    // What was given back to the driver is expected to be wanted again, though not for ever.
    const Bytes held = store_.reserved_bytes() + request.bytes;
    const Bytes total = std::max(held, expected_bytes_);
    const double growth = std::max(1.0, static_cast<double>(total) / static_cast<double>(1_GiB));
    const Bytes factor = cross_stream_ == CrossStream::Lend ? kLendingFactor : kStreamsFactor;
    const Bytes handed = arenas_.size() > 1 ? factor : 1;
    const auto usual =
        static_cast<Bytes>(static_cast<double>(handed * total / chunk_divisor_) * growth);
    const Bytes share = std::max(usual, large_request_chunk_bytes(request.bytes, total));
    const Bytes room = std::min(limit_bytes_, card_room_bytes_);
    Bytes tight = room / kRoomDivisor;
    if (arenas_.size() > 1) {
        if (!limited_ && held < room / 2) { tight = share; }
    } else {
        for (Bytes at = room / 4; held < at && tight < share; at /= 2) { tight *= 2; }
    }
    const Bytes bytes = std::min({share, max_chunk_bytes_, headroom(room) / 8, tight});
    return bytes <= page_bytes_ ? page_bytes_ : std::bit_floor(bytes / page_bytes_) * page_bytes_;
}

// Idle chunks that fit nowhere whole are released, so that smaller ones can be made.
Status PagedStrategy::make_room(const Request& request, const Window& window, Effort effort) {
    if (effort < Effort::Break || effort == Effort::WaitingIdle || request.capturing) { return {}; }
    const Bytes ceiling =
        effort >= Effort::Limit ? kMaxRequestBytes : budget_bytes(request.bytes, effort);
    const Bytes room = headroom(std::min(ceiling, room_bytes(request, effort)));
    if (room >= window.missing_bytes) { return {}; }
    Bytes wanted = window.missing_bytes - room;
    const Wait wait = effort == Effort::HostWait ? Wait::Yes : Wait::No;
    if (breakable_bytes(window, wait) < wanted) { return {}; }
    for (auto& [key, owner] : arenas_) {
        if (!owner->shared() || wanted == 0) { continue; }
        Result<Bytes> given = break_idle(*owner, window, wanted, wait);
        if (!given) { return given.status(); }
        wanted -= std::min(wanted, *given);
    }
    return {};
}

Bytes PagedStrategy::breakable_bytes(const Window& window, Wait wait) {
    Bytes sum = 0;
    for (auto& [key, owner] : arenas_) {
        if (!owner->shared()) { continue; }
        owner->fences.poll();
        clear_stale(*owner);
        for (const Block* tile : owner->arena.roomy_blocks()) {
            owner->arena.for_each_idle_chunk(tile, [&](const Chunk* chunk) {
                const bool inside = chunk->address < window.end() && chunk->end() > window.begin;
                const bool ready =
                    owner->quiet(chunk) && chunk->stale_count == 0 && !needs_scrub(chunk);
                if (!inside && chunk->pin_count == 0 && (ready || wait == Wait::Yes)) {
                    sum += chunk->bytes;
                }
            });
        }
    }
    return sum;
}

}  // namespace gma
