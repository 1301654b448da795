// How the missing pages of a window are filled: first a plan, which changes nothing, then its
// steps. Each step leaves the arena whole, so that a driver failure half way loses nothing: what
// was mapped until then is free memory.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/paged_strategy.h"

namespace gma {
namespace {

constexpr std::uint8_t kLentTier = 3;

bool at_least(Effort effort, Effort level) { return effort >= level; }

}  // namespace

// What a plan may draw on. Candidates are sorted by size; those in use by the plan are marked.
struct PagedStrategy::Supply {
    std::vector<Candidate> idle;
    std::vector<bool> taken;
    Bytes budget_new = 0;  // new memory to use before idle chunks
    Bytes limit_new = 0;   // new memory to use after them
    Bytes new_chunk = 0;   // size of a new chunk at most

    // The chunk itself if it is idle and not taken yet.
    const Candidate* pick(const Chunk* chunk) {
        const std::size_t i = chunk->candidate_index;
        return i < idle.size() && idle[i].chunk == chunk && !taken[i] ? take(i) : nullptr;
    }

    // The largest idle chunk of at most `bytes`; else the smallest that overhangs by at most
    // `room`.
    const Candidate* pick(Bytes bytes, Bytes room) {
        auto above = std::upper_bound(
            idle.begin(), idle.end(), bytes,
            [](Bytes value, const Candidate& candidate) { return value < candidate.chunk->bytes; });
        const auto split = static_cast<std::size_t>(above - idle.begin());
        for (std::size_t i = split; i-- > 0;) {
            if (!taken[i]) { return take(i); }
        }
        for (std::size_t i = split; i < idle.size(); ++i) {
            if (idle[i].chunk->bytes > bytes + room) { break; }
            if (!taken[i]) { return take(i); }
        }
        return nullptr;
    }

private:
    const Candidate* take(std::size_t index) {
        taken[index] = true;
        return &idle[index];
    }
};

Result<Block*> PagedStrategy::obtain(const Request& request, Effort effort) {
    Result<StreamArena*> target = arena_for(request);
    if (!target) { return target.status(); }
    StreamArena& owner = **target;
    if (!owner.shared() && effort < Effort::Limit && effort > Effort::Budget) { return nullptr; }
    Result<Block*> block = borrow(owner, request, effort);
    if (!block || *block != nullptr) { return block; }
    if (effort == Effort::Budget && budget_is_used_up(request)) { return nullptr; }
    bool asked = false;
    for (const Window& window : windows_for(owner, request)) {
        if (!window.found()) { continue; }
        if (!std::exchange(asked, true)) { ask_card(request, window.missing_bytes, effort); }
        block = fill_and_carve(owner, request, window, effort);
        if (!block || *block != nullptr) { return block; }
    }
    return block;
}

std::vector<Window> PagedStrategy::windows_for(const StreamArena& owner,
                                               const Request& request) const {
    const Arena& arena = owner.arena;
    if (request.at != 0) { return {window_at(arena, request.at, request.bytes)}; }
    const Bytes bytes = owner.no_split ? round_up(request.bytes, page_bytes_) : request.bytes;
    std::vector<Window> windows;
    if (owner.no_split) {
        windows = {hole_window(arena, bytes)};
    } else {
        windows = {best_window(arena, bytes, request.alignment),
                   last_window(arena, bytes, request.alignment)};
    }
    if (request.capturing && !arena.holes().empty()) {  // where nothing has to be unmapped
        const Block* hole = arena.holes().last();
        const Address fresh = store_.kept_end(hole->address, hole->end());
        if (fresh < hole->end()) {
            windows.push_back(window_at(arena, round_up(fresh, request.alignment), bytes));
        }
    }
    return windows;
}

Result<Block*> PagedStrategy::fill_and_carve(StreamArena& target, const Request& request,
                                             const Window& window, Effort effort) {
    Result<bool> filled = fill(target, request, window, effort);
    if (!filled) { return filled.status(); }
    if (!*filled) { return nullptr; }
    Block* tile = target.arena.roomy_blocks().holding(window.begin, window.end());
    // Less than a page in all: memory that came back since the window was looked for suffices.
    if (tile == nullptr) { return take_cached(request); }
    if (request.capturing && !may_take(target, window.begin, request)) { return nullptr; }
    Status status = order_after_borrowers(target, window.begin, window.bytes, target);
    if (!status.ok()) { return status; }
    return take(tile, window.begin, window.bytes);
}

// Fills the pages without memory inside a window. False: the effort does not suffice.
Result<bool> PagedStrategy::fill(StreamArena& target, const Request& request, const Window& window,
                                 Effort effort) {
    has_captured_ |= request.capturing;  // set_captures() is not told of all captures
    if (Status status = make_room(request, window, effort); !status.ok()) { return status; }
    const Bytes room = room_bytes(request, effort);
    Supply supply;
    supply.budget_new = headroom(std::min(budget_bytes(request.bytes, effort), room));
    if (at_least(effort, Effort::Limit)) { supply.limit_new = headroom(room) - supply.budget_new; }
    const Bytes idle_bytes = most_idle_bytes(target, effort, request.capturing);
    if (supply.budget_new + supply.limit_new + idle_bytes < window.missing_bytes) { return false; }
    supply.idle = idle_candidates(target, window, effort, request.capturing);
    supply.taken.assign(supply.idle.size(), false);
    supply.new_chunk = new_chunk_bytes(request);
    std::vector<Step> steps;
    for (MissingRun run : missing_runs(target.arena, window)) {
        if (target.no_split) { run.room_before = run.room_after = 0; }
        for (const MissingRun& gap : plan_returns(run, supply, steps)) {
            if (!plan_run(gap, supply, steps)) { return false; }
        }
    }
    if (request.capturing && std::any_of(steps.begin(), steps.end(), [this](const Step& step) {
            const Chunk* chunk = step.source == nullptr ? nullptr : step.source->chunk;
            return store_.ends_kept(chunk, step.address, step.address + step.bytes);
        })) {
        return false;
    }
    for (const Step& step : steps) {
        if (Status status = apply(target, step); !status.ok()) { return status; }
    }
    return true;
}

bool PagedStrategy::may_draw_on(const StreamArena& owner, const StreamArena& target,
                                Effort effort) const {
    if (!owner.shared()) { return false; }
    if (&owner == &target) { return at_least(effort, Effort::OwnIdle); }
    return at_least(effort, owner.captured ? Effort::HostWait : Effort::PassedIdle) &&
           cross_stream_ != CrossStream::Never;
}

// What idle_candidates() could list at most, from counters: where they are many, listing them takes
// longer than all else.
Bytes PagedStrategy::most_idle_bytes(const StreamArena& target, Effort effort,
                                     bool capturing) const {
    Bytes sum = store_.spare_bytes();
    for (const auto& [key, owner] : arenas_) {
        if (capturing || !may_draw_on(*owner, target, effort)) { continue; }
        sum += owner->arena.free_bytes() - owner->arena.split_bytes();
    }
    return sum;
}

std::vector<PagedStrategy::Candidate> PagedStrategy::idle_candidates(StreamArena& target,
                                                                     const Window& window,
                                                                     Effort effort,
                                                                     bool capturing) {
    std::vector<Candidate> candidates;
    for (Chunk* chunk : store_.spares()) { candidates.push_back({chunk, nullptr, 0}); }
    for (auto& [key, owner] : arenas_) {
        if (capturing || !may_draw_on(*owner, target, effort)) { continue; }
        const bool own = owner.get() == &target;
        if (!own || owner->has_lent) { fence_and_poll(*owner); }
        const bool may_wait =
            at_least(effort, Effort::WaitingIdle) && cross_stream_ >= CrossStream::Wait;
        const std::uint8_t tier = own ? 1 : 2;
        for (const Block* tile : owner->arena.roomy_blocks()) {
            owner->arena.for_each_idle_chunk(tile, [&](Chunk* chunk) {
                const bool inside =
                    own && chunk->address < window.end() && chunk->end() > window.begin;
                if (inside || chunk->pin_count > 0) { return; }
                const bool lent = !StreamArena::returned(chunk);
                if (may_wait || (own && !lent) || owner->quiet(chunk)) {
                    candidates.push_back({chunk, owner.get(), lent ? kLentTier : tier});
                }
            });
        }
    }
    // Among equal sizes pick() takes the last: own memory at the arena's end before others', and
    // what other streams may still use last.
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) {
                         if (a.chunk->bytes != b.chunk->bytes) {
                             return a.chunk->bytes < b.chunk->bytes;
                         }
                         return a.tier > b.tier;
                     });
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        candidates[i].chunk->candidate_index = i;
    }
    return candidates;
}

// A stream that has had nothing to do for a while shows at once that its memory is quiet.
void PagedStrategy::fence_and_poll(StreamArena& owner) {
    const std::uint64_t now = owner.arena.free_count;
    if (owner.fences.fenced_count() < now) { static_cast<void>(owner.fences.covering(now, now)); }
    owner.fences.poll();
}

// Idle chunks still mapped in the run go back there: no call. Returns what is left between them.
std::vector<MissingRun> PagedStrategy::plan_returns(const MissingRun& run, Supply& supply,
                                                    std::vector<Step>& steps) const {
    std::vector<MissingRun> gaps;
    Address at = run.begin;
    Bytes room_before = run.room_before;
    const Address end = run.begin + run.bytes;
    for (auto it = store_.kept().lower_bound(at); it != store_.kept().end(); ++it) {
        const auto& [address, kept] = *it;
        if (address + kept.bytes > end) { break; }
        const bool counts = store_.is_of_this_round(kept);
        const Candidate* source = counts ? supply.pick(kept.chunk) : nullptr;
        if (source == nullptr) { continue; }
        steps.push_back({address, kept.bytes, source});
        if (address > at) { gaps.push_back({at, address - at, room_before, 0}); }
        at = address + kept.bytes;
        room_before = 0;
    }
    if (at < end) { gaps.push_back({at, end - at, room_before, run.room_after}); }
    return gaps;
}

bool PagedStrategy::plan_run(const MissingRun& run, Supply& supply,
                             std::vector<Step>& steps) const {
    Address at = run.begin;
    Bytes left = run.bytes;
    auto new_step = [&](Bytes& allowance) {
        Bytes bytes = std::min({left, supply.new_chunk, allowance});
        bytes = std::bit_floor(bytes / page_bytes_) * page_bytes_;
        // One handle for the last pages and up to a quarter more, instead of several.
        const Bytes whole = std::bit_ceil(left / page_bytes_) * page_bytes_;
        if (whole <= std::min(supply.new_chunk, allowance) &&
            whole - left <= std::min(run.room_after, left / 4)) {
            bytes = whole;
        }
        if (bytes == 0) { return false; }
        steps.push_back({at, bytes, nullptr});
        allowance -= bytes;
        at += bytes;
        left -= std::min(left, bytes);
        return true;
    };
    while (left > 0) {
        if (new_step(supply.budget_new)) { continue; }
        if (const Candidate* source = supply.pick(left, run.room_after); source != nullptr) {
            steps.push_back({at, source->chunk->bytes, source});
            at += source->chunk->bytes;
            left -= std::min(left, source->chunk->bytes);
            continue;
        }
        if (at == run.begin && run.room_before > 0) {
            const Candidate* source = supply.pick(left, run.room_before);
            if (source != nullptr) {
                steps.push_back(
                    {run.begin + left - source->chunk->bytes, source->chunk->bytes, source});
                return true;
            }
        }
        if (!new_step(supply.limit_new)) { return false; }
    }
    return true;
}

Status PagedStrategy::apply(StreamArena& target, const Step& step) {
    return step.source == nullptr ? add_new(target, step.address, step.bytes)
                                  : move_chunk(target, *step.source, step.address);
}

Status PagedStrategy::add_new(StreamArena& target, Address address, Bytes bytes) {
    Result<Chunk*> chunk = store_.create(bytes);
    if (!chunk) {
        ask_card_from_bytes_ = 0;
        return chunk.status();
    }
    Status status = place_chunk(target, *chunk, address);
    if (status.ok()) { set_home(target, *chunk); }
    return status;
}

// A mapping that can be neither used nor undone is stale: tried again by and by, blocked till then.
Status PagedStrategy::map_chunk(StreamArena& target, Chunk* chunk, Address address) {
    auto undo = ChunkStore::Undo::Done;
    Status status = store_.map(chunk, &target.arena, address, undo);
    if (undo == ChunkStore::Undo::Refused) {
        target.stale.push_back(
            {target.arena.block(address, chunk->bytes), chunk, 0, ChunkStore::Made::Half, {}});
        ++chunk->stale_count;
    }
    if (status.ok()) { fill_pattern(target, chunk); }
    return status;
}

Status PagedStrategy::place_chunk(StreamArena& target, Chunk* chunk, Address address) {
    if (Status status = map_chunk(target, chunk, address); !status.ok()) { return status; }
    target.arena.fill(chunk);
    return {};
}

Status PagedStrategy::move_chunk(StreamArena& target, const Candidate& from, Address address) {
    Chunk* chunk = from.chunk;
    if (level_ == Isolation::Off && !disturbed_) {  // a chunk on its way home belongs to no stream
        disturbed_ = true;
        ++disturbance_count_;
    }
    if (from.owner == nullptr) { return place_chunk(target, chunk, address); }
    StreamArena& owner = *from.owner;
    if (owner.captured ||
        (!owner.quiet(chunk) && !owner.fences.covering(chunk->freed_at, owner.arena.free_count))) {
        // Its stream was destroyed, or graphs used it; then the old addresses can go at once.
        if (Status s = wait_for_chunk(owner, chunk); !s.ok()) { return s; }
    }
    Status status = owner.quiet(chunk) ? move_quiet(target, owner, chunk, address)
                                       : move_in_use(target, owner, chunk, address);
    if (status.ok()) {
        ++counters_.moved_chunk_count;
        counters_.moved_bytes += chunk->bytes;
    }
    return status;
}

// Nothing that runs uses it: its old addresses are given up at once.
Status PagedStrategy::move_quiet(StreamArena& target, StreamArena& owner, Chunk* chunk,
                                 Address address) {
    store_.leave(chunk, owner.arena, chunk->address);
    const Address before = chunk->address;
    owner.arena.vacate(chunk, TileKind::Hole);
    store_.set_spare(chunk);
    Status status = place_chunk(target, chunk, address);
    // What its stream has written is not for whoever takes a spare chunk next. To map it where it
    // was is no driver call.
    if (!status.ok() && level_ != Isolation::Off) {
        static_cast<void>(place_chunk(owner, chunk, before));
    }
    return status;
}

// Earlier work may still use it: it is mapped at both places, which is legal because stream order
// separates the uses. The old addresses stay blocked until the fence has passed.
Status PagedStrategy::move_in_use(StreamArena& target, StreamArena& owner, Chunk* chunk,
                                  Address address) {
    const bool own = &owner == &target;
    if (!own) {
        if (Status s = order_after(owner, chunk->freed_at, target); !s.ok()) { return s; }
    }
    // Erases what is done: what is left holds the old addresses.
    if (Status s = order_after_borrowers(owner, chunk->address, chunk->bytes, target); !s.ok()) {
        return s;
    }
    for (const BorrowedUse& use : chunk->borrowed_uses) {  // its own: it does not wait for itself
        if (use.borrower != &target) { continue; }
        static_cast<void>(target.fences.covering(use.count, target.arena.free_count));
    }
    const std::uint64_t count = chunk->freed_at;
    Block* tile = owner.arena.vacate(chunk, TileKind::Stale);
    if (Status status = map_chunk(target, chunk, address); !status.ok()) {
        owner.arena.clear_stale(tile);
        owner.arena.fill(chunk);
        return status;
    }
    // In another arena its age counts on another clock: in use until a fence there says not. Nor
    // does an earlier fence of its own arena speak for borrowers.
    if (!own || !chunk->borrowed_uses.empty()) { chunk->freed_at = ++target.arena.free_count; }
    owner.stale.push_back(
        {tile, chunk, count, ChunkStore::Made::Whole, std::exchange(chunk->borrowed_uses, {})});
    ++chunk->stale_count;
    target.arena.fill(chunk);
    return {};
}

}  // namespace gma
