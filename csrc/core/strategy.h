// One interface for the ways memory is carved: paged, split, direct.
//
// The device's lock is held for every call. A strategy knows nothing of threads, statistics,
// record_stream or retries: device_heap does that, and climbs the efforts below.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/allocator.h"
#include "core/block.h"

namespace gma {

struct Request {
    Bytes bytes = 0;            // a multiple of kUnitBytes
    Bytes requested_bytes = 0;  // of the caller
    Bytes alignment = kUnitBytes;
    Stream stream = nullptr;
    std::uint64_t stream_id = 0;
    PoolId pool;
    Address at = 0;           // where it has to lie; 0: anywhere
    bool capturing = false;   // a graph is being captured: only new memory, no fences
    bool may_borrow = false;  // a block of another stream's memory will do
    bool for_graph =
        false;  // the graph will use it, whenever and on whatever stream it is launched
};

// What may be done to find memory, each including those before it. The order is the retry ladder.
enum class Effort : std::uint8_t {
    Budget,       // new memory while the total stays below peak use x (1 + slack)
    OwnIdle,      // idle chunks of the same stream move
    PassedIdle,   // a little new memory; idle chunks of other streams whose fence has passed
    Break,        // idle chunks that do not fit are released and made anew in pieces
    WaitingIdle,  // other streams' idle chunks; the requesting stream waits for their fences
    Limit,        // new memory up to the limit
    HostWait,     // the host waits for the fences that suffice
};
inline constexpr int kEffortCount = 7;

struct StrategyCounters {
    std::int64_t segment_count = 0;
    std::int64_t device_alloc_count = 0;
    std::int64_t device_free_count = 0;
    std::int64_t moved_chunk_count = 0;
    std::int64_t stream_wait_count = 0;
    std::int64_t host_wait_count = 0;
    std::int64_t leaked_count = 0;
    Bytes moved_bytes = 0;
    Bytes inactive_split_bytes = 0;
    std::int64_t inactive_split_count = 0;
    Bytes private_pool_bytes = 0;  // held by private pools that are not released
    // Isolation, see IsolationReport.
    Bytes cached_bytes = 0;
    Bytes waiting_bytes = 0;
    Bytes quarantined_address_bytes = 0;
    std::int64_t unchecked_count = 0;
};

class HeapStrategy {
public:
    virtual ~HeapStrategy() = default;

    // A Used block from memory at hand, or nullptr; no driver call.
    virtual Block* take_cached(const Request& request) = 0;
    // A Used block by the given means. nullptr: they do not suffice. A failure other than out of
    // memory is the driver's.
    virtual Result<Block*> obtain(const Request& request, Effort effort) = 0;
    // A Used or Pending block becomes Free.
    virtual void give(Block* block) = 0;
    // A Used block was freed, but streams that record_stream named may still use it.
    virtual void set_pending(Block* block) { block->kind = TileKind::Pending; }
    // The Used or Pending block that starts at `address`, or nullptr.
    virtual Block* find(Address address) = 0;
    virtual BaseAllocation base_of(const Block* block) const = 0;
    // The addresses that nobody else gets while the block stands.
    virtual ByteRange window_of(const Block* block) const { return {block->address, block->end()}; }
    // What of them must hold the pattern of the no-sharing mode, if anything.
    virtual std::vector<ByteRange> gaps_of(const Block*) const { return {}; }
    // Adds the free memory that must hold it too.
    virtual void add_patterned(std::vector<ByteRange>&) const {}

    // Finishes what waits for fences that have passed.
    virtual void poll() = 0;
    // The host waits for the answers of all checks of contents, and for what is being unmapped.
    virtual void settle() {}
    // Gives back up to `bytes` of idle memory. Yes: the host waits for the fences it needs. Ask:
    // they are recorded and asked, but not waited for. No: what a capture forbids is left alone.
    enum class Wait : std::uint8_t { No, Ask, Yes };
    virtual Result<Bytes> trim(Bytes bytes, Wait wait) = 0;
    // The pool's memory may be used for anything from now on, until it is begun again.
    virtual void release_pool(PoolId pool) = 0;
    virtual void begin_pool(PoolId) {}
    // From now on no block of the pool shares physical memory with another one.
    virtual void set_no_split(PoolId) {}
    // Gives back what no block of the pool uses, unless a graph may use it.
    virtual Result<Bytes> trim_pool(PoolId pool, Wait wait) = 0;
    virtual bool captured(PoolId) const { return false; }  // a graph may use the pool's memory
    // Adds the physical bytes that each private pool holds, also of released ones.
    virtual void add_pool_bytes(std::map<PoolId, Bytes>& held) const = 0;
    // Grows whenever reserved_bytes() or what a pool holds may have changed.
    virtual std::uint64_t layout_count() const = 0;
    // The Used and Pending blocks of a pool, in address order.
    virtual std::vector<Block*> pool_blocks(PoolId pool) const = 0;

    // Places. NotSupported: no block can be put at `request.at` for its stream and pool, now.
    virtual Status check_place(const Request& request) const = 0;
    // Sees to it that there is memory at [request.at, + bytes) of the pool, under whatever blocks
    // lie there. False: the effort does not suffice.
    virtual Result<bool> fill_place(const Request& request, Effort effort) = 0;
    // A Used block exactly there, or nullptr if the place is not all Free; no driver call.
    virtual Block* take_at(PoolId pool, Address at, Bytes bytes) = 0;

    // While set, nothing is asked of events and nothing unmapped or freed, whoever asks for it.
    virtual void set_captures(bool) {}
    virtual void pin(Block* block) = 0;
    virtual void unpin(Block* block) = 0;

    virtual void set_limit(Bytes limit_bytes) = 0;
    // Whether the user has set a limit. What other strategies or a full card leave of the card is
    // told by set_limit() alone.
    virtual void set_limited(bool) {}
    virtual Bytes reserved_bytes() const = 0;
    virtual Bytes used_bytes() const { return 0; }  // of Used and Pending blocks
    // Memory has moved: once nothing is used, it will go back to where it was.
    virtual bool disturbed() const { return false; }
    // Nothing is live any more: so that the next request can tell whether all work is done.
    virtual void fence_everything() {}
    // The largest free block outside private pools.
    virtual Bytes largest_free_bytes() const = 0;
    // The largest request that idle memory and `growth_bytes` of new memory can serve.
    virtual Bytes available_bytes(Bytes growth_bytes) const = 0;
    virtual StrategyCounters counters() const = 0;
    virtual void snapshot(std::vector<SegmentInfo>& segments) const = 0;
    // Recounts everything; InvalidValue names the invariant that does not hold, and both sides.
    virtual Status audit() const = 0;
};

}  // namespace gma
