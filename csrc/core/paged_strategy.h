// The paged strategy: one arena per stream (and private pool); blocks share pages; chunks of
// physical memory move to where pages are missed.
//
// A request is served by the first of these that works:
//   1. the smallest mapped free block that holds it (take_cached);
//   2. the window that misses the fewest pages (placement), its missing pages filled (page_filler)
//      from spare chunks, new chunks within the budget, idle chunks from elsewhere, new chunks up
//      to the limit (obtain, by effort).
//
//   reserved_bytes() <= limit, and <= max(used)*(1 + slack) unless no idle chunk would serve, or
//   only one of another stream, and the total is below max(used) + stream slack.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "core/address_map.h"
#include "core/arena.h"
#include "core/chunk_store.h"
#include "core/fence_line.h"
#include "core/isolation.h"
#include "core/placement.h"
#include "core/strategy.h"

namespace gma {

// Old addresses of a chunk that moved: unmapped when the free numbered `count` has passed, and what
// other streams did there while it was lent.
struct StaleRange {
    Block* tile = nullptr;
    Chunk* chunk = nullptr;
    std::uint64_t count = 0;
    ChunkStore::Made made = ChunkStore::Made::Whole;
    std::vector<BorrowedUse> borrowed_uses;
};

struct StreamArena {
    StreamArena(ArenaKey key, Address base, Bytes bytes, Bytes page_bytes, BlockPool& blocks,
                Driver& driver, int device)
        : arena(key, base, bytes, page_bytes, blocks),
          fences(driver, device, key.stream, key.stream_id) {}

    // All work that used the chunk is known to be done. A graph may be launched on any stream, so
    // that no fence speaks for memory that one was captured with; see PagedStrategy::wait_for.
    bool quiet(const Chunk* chunk) const {
        return !captured && chunk->freed_at <= fences.passed_count() && returned(chunk);
    }
    // What other streams did with it while it was lent is done.
    static bool returned(const std::vector<BorrowedUse>& uses);
    static bool returned(const Chunk* chunk) { return returned(chunk->borrowed_uses); }
    bool shared() const { return arena.key().pool == PoolId{} || released; }

    Arena arena;
    FenceLine fences;
    std::deque<StaleRange> stale;
    std::map<Address, Bytes> homes;  // of chunks, wherever they are now; they do not overlap
    // How far this stream's work comes after another's: the frees there that it has waited for.
    std::map<const StreamArena*, std::uint64_t> waited_for;
    bool captured = false;  // a graph was captured with memory of it
    bool has_lent = false;  // another stream has used blocks of it
    bool released = false;  // a private pool's arena after release_pool()
    // Blocks are made of whole chunks, which no other block shares (set_no_split).
    bool no_split = false;
};

inline bool StreamArena::returned(const std::vector<BorrowedUse>& uses) {
    for (const BorrowedUse& use : uses) {
        if (use.count > use.borrower->fences.passed_count()) { return false; }
    }
    return true;
}

class PagedStrategy final : public HeapStrategy {
public:
    // With isolation `packed`, free memory of `checked_pool` holds the pattern.
    PagedStrategy(Driver& driver, int device, DeviceProperties properties, const Options& options,
                  Isolation level, PoolId checked_pool, AddressMap& addresses,
                  const Listeners& listeners);
    ~PagedStrategy() override;

    Block* take_cached(const Request& request) override;
    Result<Block*> obtain(const Request& request, Effort effort) override;
    void give(Block* block) override;
    Block* find(Address address) override;
    BaseAllocation base_of(const Block* block) const override;
    std::vector<ByteRange> gaps_of(const Block* block) const override;
    void add_patterned(std::vector<ByteRange>& ranges) const override;
    void poll() override;
    Result<Bytes> trim(Bytes bytes, Wait wait) override;
    void release_pool(PoolId pool) override;
    void begin_pool(PoolId pool) override;
    void set_no_split(PoolId pool) override;
    Result<Bytes> trim_pool(PoolId pool, Wait wait) override;
    bool captured(PoolId pool) const override;
    void add_pool_bytes(std::map<PoolId, Bytes>& held) const override;
    std::uint64_t layout_count() const override { return store_.change_count(); }
    std::vector<Block*> pool_blocks(PoolId pool) const override;
    Status check_place(const Request& request) const override;
    Result<bool> fill_place(const Request& request, Effort effort) override;
    Block* take_at(PoolId pool, Address at, Bytes bytes) override;
    void set_captures(bool captures) override {
        captures_ = captures;
        has_captured_ |= captures;
    }
    void pin(Block* block) override;
    void unpin(Block* block) override;
    void set_limit(Bytes limit_bytes) override { limit_bytes_ = limit_bytes; }
    void set_limited(bool limited) override { limited_ = limited; }
    Bytes reserved_bytes() const override { return store_.reserved_bytes(); }
    Bytes used_bytes() const override { return used_bytes_; }
    bool disturbed() const override { return disturbed_; }
    void fence_everything() override;
    void set_pending(Block* block) override { block->arena->set_pending(block); }
    Bytes largest_free_bytes() const override;
    Bytes available_bytes(Bytes growth_bytes) const override;
    StrategyCounters counters() const override;
    void snapshot(std::vector<SegmentInfo>& segments) const override;
    Status audit() const override;

private:
    static constexpr Bytes kRoomDivisor = 4096;
    static constexpr Bytes kSparedBytes = 32_MiB;
    static constexpr Bytes kSparedShare = 256;       // of the room, at most
    static constexpr Bytes kLimitSlackFactor = 10;   // of the slack, in the upper half
    static constexpr Bytes kStreamSlackShare = 256;  // of the card or its limit, at most
    static constexpr std::uint64_t kDisturbancesBorne = 3;
    static constexpr Bytes kStreamsFactor = 8;
    static constexpr Bytes kLendingFactor = 6;
    static constexpr Bytes kLargeRequestShare = 26;  // a twelfth by default

    // One idle chunk that could be taken, best first: own stream, passed fence, oldest use.
    struct Candidate {
        Chunk* chunk;
        StreamArena* owner;
        std::uint8_t tier;
    };
    struct Step {
        Address address;
        Bytes bytes;
        const Candidate* source;  // nullptr: a new chunk
    };
    struct Supply;

    Result<StreamArena*> arena_for(const Request& request);
    Result<StreamArena*> make_arena(const Request& request);
    // chunk_size.cpp
    Bytes budget_bytes(Bytes request_bytes, Effort effort) const;
    Bytes new_chunk_bytes(const Request& request) const;
    Bytes large_request_chunk_bytes(Bytes request_bytes, Bytes total) const;
    bool budget_is_used_up(const Request& request) const;
    Bytes headroom(Bytes ceiling_bytes) const;
    Status make_room(const Request& request, const Window& window, Effort effort);
    Bytes breakable_bytes(const Window& window, Wait wait);
    void ask_card(const Request& request, Bytes missing_bytes, Effort effort);
    Bytes room_bytes(const Request& request, Effort effort) const;
    // page_filler.cpp
    std::vector<Window> windows_for(const StreamArena& owner, const Request& request) const;
    Result<bool> fill(StreamArena& target, const Request& request, const Window& window,
                      Effort effort);
    Result<Block*> fill_and_carve(StreamArena& target, const Request& request, const Window& window,
                                  Effort effort);
    Block* take(Block* tile, Address at, Bytes bytes);
    Block* take_whole(StreamArena& owner, Bytes bytes);
    Arena* arena_at(PoolId pool, Address at, Bytes bytes) const;
    Result<bool> clear_place(StreamArena& owner, const Request& request, Effort effort);
    void drop_unused_arenas();
    bool unused(const StreamArena& owner) const;
    bool may_draw_on(const StreamArena& owner, const StreamArena& target, Effort effort) const;
    Bytes most_idle_bytes(const StreamArena& target, Effort effort, bool capturing) const;
    std::vector<Candidate> idle_candidates(StreamArena& target, const Window& window, Effort effort,
                                           bool capturing);
    std::vector<MissingRun> plan_returns(const MissingRun& run, Supply& supply,
                                         std::vector<Step>& steps) const;
    bool plan_run(const MissingRun& run, Supply& supply, std::vector<Step>& steps) const;
    Status apply(StreamArena& target, const Step& step);
    Status add_new(StreamArena& target, Address address, Bytes bytes);
    Status move_chunk(StreamArena& target, const Candidate& from, Address address);
    Status move_quiet(StreamArena& target, StreamArena& owner, Chunk* chunk, Address address);
    Status move_in_use(StreamArena& target, StreamArena& owner, Chunk* chunk, Address address);
    Status order_after(StreamArena& owner, std::uint64_t count, StreamArena& target);
    // paged_lending.cpp
    Result<Block*> borrow(StreamArena& borrower, const Request& request, Effort effort);
    void give_back(Block* block);
    Status order_after_borrowers(StreamArena& owner, Address at, Bytes bytes, StreamArena& user);
    bool may_take(StreamArena& owner, Address at, const Request& request);
    // paged_isolation.cpp
    void fill_pattern(StreamArena& target, Chunk* chunk);
    void forget_pattern(const Block* block);
    // The host waits for that, which a capture forbids: not with Wait::No.
    bool needs_scrub(const Chunk* chunk) const;
    Status scrub(const StreamArena& owner, const Chunk* chunk);
    Status wait_for_chunk(StreamArena& owner, Chunk* chunk);
    Status wait_for_uses(const std::vector<BorrowedUse>& uses);
    void fence_and_poll(StreamArena& owner);
    Status map_chunk(StreamArena& target, Chunk* chunk, Address address);
    Status place_chunk(StreamArena& target, Chunk* chunk, Address address);
    Result<Bytes> break_idle(StreamArena& target, const Window& window, Bytes wanted, Wait wait);
    Status wait_for(StreamArena& owner, std::uint64_t count);
    Status wait_for_stale(const Chunk* chunk);
    Status release_idle(StreamArena& owner, Chunk* chunk);
    void clear_stale(StreamArena& owner);
    void set_home(StreamArena& owner, Chunk* chunk);
    void forget_home(Chunk* chunk);
    void go_home();
    StreamArena* owner_of(const Arena* arena) const;
    Status audit_arena(const StreamArena& owner, Bytes& mapped_bytes) const;
    Status audit_counts(const StreamArena& owner) const;
    Status audit_kept() const;

    Driver& driver_;
    const int device_;
    const Bytes page_bytes_;
    const Bytes total_bytes_;
    const double slack_;
    const Bytes stream_slack_bytes_;
    const Bytes max_chunk_bytes_;
    const Bytes chunk_divisor_;
    enum class CrossStream : std::uint8_t { Never, Passed, Wait, Lend };
    const CrossStream cross_stream_;
    const Isolation level_;
    const PoolId checked_pool_;
    const bool scrubs_;
    AddressMap& addresses_;
    BlockPool blocks_;
    ChunkStore store_;
    std::map<ArenaKey, std::unique_ptr<StreamArena>> arenas_;
    StreamArena* recent_ = nullptr;
    Bytes limit_bytes_ = kMaxRequestBytes;
    bool limited_ = false;  // by the user
    Bytes card_room_bytes_ = kMaxRequestBytes;
    Bytes ask_card_from_bytes_ = 0;  // of reserved bytes; 0: whatever the effort
    Bytes used_bytes_ = 0;
    Bytes used_bytes_peak_ = 0;
    Bytes recent_bytes_peak_ = 0;                 // of used bytes since memory was last given back
    std::array<Bytes, 4> peaks_between_trims_{};  // of used bytes, the newest last
    Bytes expected_bytes_ = 0;                    // to be used again of what was
    bool disturbed_ = false;  // a chunk has left its home since all were there, or will
    std::uint64_t disturbance_count_ = 0;  // how often that began
    bool go_home_due_ = false;
    bool captures_ = false;  // somewhere a graph is being captured
    bool has_captured_ = false;
    std::set<PoolId> no_split_pools_;
    StrategyCounters counters_;
};

}  // namespace gma
