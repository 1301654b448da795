// The allocator as its doors see it. One object serves all devices of a process.
//
// Layers below it: device_heap (one per device: lock, streams, fences, limit, retry ladder) ->
// strategy (paged, split, direct) -> driver. Nothing here knows torch or CUDA.
//
// It is an interface because the bridge is compiled apart from the core, against the torch of the
// user's machine: all that it needs of the core are these headers and one pointer. What implements
// it is core_allocator.h.
//
// No function throws. All may be called from any thread. After a fork the child gets Code::Forked,
// or nothing where there is no status; its frees do nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trace_record.h"
#include "base/units.h"
#include "core/isolation.h"
#include "core/options.h"
#include "core/statistics.h"
#include "driver/driver.h"

namespace gma {

class EventRing;

// PyTorch's MempoolId_t: {0, 0} is the default pool.
struct PoolId {
    std::uint64_t first = 0;
    std::uint64_t second = 0;
    friend auto operator<=>(const PoolId&, const PoolId&) = default;
};

enum class BlockState : std::uint8_t { Allocated, PendingFree, Free };

struct BlockInfo {
    Address address = 0;
    Bytes bytes = 0;
    Bytes requested_bytes = 0;
    BlockState state = BlockState::Free;
};

// A run of mapped memory as PyTorch's snapshots have it: its blocks tile it in address order.
struct SegmentInfo {
    int device = 0;
    Address address = 0;
    Bytes bytes = 0;
    Stream stream = nullptr;
    PoolId pool;
    bool is_expandable = false;
    std::uint64_t serial = 0;  // in order of creation, within its pool; never 0
    std::vector<BlockInfo> blocks;
};

// Everything an out-of-memory text needs; the texts are made in out_of_memory.cpp.
struct OutOfMemoryReport {
    int device = 0;
    Bytes requested_bytes = 0;
    Bytes card_free_bytes = 0;
    Bytes card_total_bytes = 0;
    Bytes limit_bytes = 0;
    Bytes live_bytes = 0;
    Bytes reserved_bytes = 0;
    Bytes pending_bytes = 0;  // freed, but another stream may still use it
    Bytes private_pool_bytes = 0;
    Bytes largest_free_bytes = 0;
    std::string cause;  // one sentence
};

struct BaseAllocation {
    Address address = 0;
    Bytes bytes = 0;
};

// A block that a private pool has handed out, as a checkpoint keeps it.
struct PoolBlock {
    Address address = 0;
    Bytes bytes = 0;
    Bytes requested_bytes = 0;
};
struct PoolChange {
    std::vector<Address> freed;
    std::vector<Address> allocated;  // a block may be in both
};
struct PoolBytes {
    PoolId pool;
    PooledGauge reserved_bytes;
};

// What another process needs to map a block: the chunks that hold it, in address order.
struct ExportedPiece {
    Bytes bytes = 0;
    int descriptor = -1;
    std::uint64_t serial = 0;  // no other memory of the exporting process ever has it
};
struct ExportedBlock {
    int device = 0;
    Bytes offset = 0;       // of the block in the first piece
    Bytes bytes = 0;        // of the block
    Bytes other_bytes = 0;  // of the pieces: other blocks are or may be there, and go along
    std::vector<ExportedPiece> pieces;
};

// The no-sharing mode on one device.
struct IsolationReport {
    Isolation level = Isolation::Off;     // of what is allocated outside regions
    Bytes cached_bytes = 0;               // physical, for the next tensors
    Bytes waiting_bytes = 0;              // physical, of freed tensors whose fence has not passed
    Bytes quarantined_address_bytes = 0;  // addresses without memory
    std::int64_t unchecked_count = 0;     // frees that could not be checked
    std::uint64_t violation_count = 0;    // all, also those no longer listed
    std::vector<Violation> violations;    // oldest first
    std::string shortcoming;              // what the device cannot check; empty: nothing
};

// Where a private pool's memory comes from when it is not ours: whole segments of another
// allocator. Called under the device's lock.
class SegmentProvider {
public:
    virtual ~SegmentProvider() = default;
    virtual Result<Address> obtain(Bytes bytes) = 0;
    virtual void give_back(Address address) noexcept = 0;
};

// Is told what happens to memory, in order, under the device's lock: it must not call the
// allocator. Segments (SegmentAlloc, SegmentFree, SegmentMap, SegmentUnmap) and the end of frees
// that had to wait (FreeCompleted); the caller knows of its own allocations and frees.
class EventSink {
public:
    virtual ~EventSink() = default;
    virtual void note(const TraceRecord& record) noexcept = 0;
};

class Allocator {
public:
    // `driver` must outlive the allocator. Fails with the driver's status if it cannot be asked.
    static Result<std::unique_ptr<Allocator>> create(Driver& driver, const Options& options);
    Allocator() = default;
    Allocator(const Allocator&) = delete;
    Allocator& operator=(const Allocator&) = delete;
    virtual ~Allocator() = default;

    // 0 bytes succeed with address 0. Out of memory is Code::OutOfMemory with the whole report as
    // its message (see out_of_memory.h).
    virtual Result<Address> allocate(int device, Bytes bytes, Stream stream) = 0;
    // The same at a place that the caller names, in memory that was allocated for the stream
    // before. Code::NotSupported if a block lies there or the strategy cannot place.
    virtual Result<Address> allocate_at(int device, Bytes bytes, Stream stream, Address at) = 0;
    // 0 is ignored. Foreign pointers and double frees are Code::InvalidValue.
    virtual Status free(Address address) = 0;
    // The same, and `observer` is told of the block as describe() has it, once, while nobody else
    // can have its memory yet: whatever is noted of the next allocation there comes later. Told
    // under a lock of the allocator, so it must not call it; of a refused free it is not told.
    virtual Status free_observed(Address address, EventSink& observer) = 0;
    // From now on `address` may be in use by `stream` too, until the work queued there at the time
    // of its free is done.
    virtual Status record_stream(Address address, Stream stream) = 0;
    // The allocated block at `address`: requested bytes, device, stream, pool; the action is what
    // its free would be, Free or FreeRequested. Empty: none of ours is allocated there.
    virtual std::optional<TraceRecord> describe(Address address) = 0;

    // Where the range that holds `address` starts, and its size (cudaIpcMemHandle needs it).
    virtual Result<BaseAllocation> base_allocation(Address address) = 0;
    // Chunks under an exported block are not moved, reused or released until unpin().
    virtual Status pin(Address address) = 0;
    virtual Status unpin(Address address) = 0;

    // Whether another process may get at the memory at `address`, by whatever means. NotSupported,
    // in three lines, where the no-sharing mode forbids it; what is not ours goes by the program's.
    virtual Status check_may_leave(Address address) = 0;
    // Between processes. Exports the allocated block at `address` until it is freed: so long its
    // chunks stay where they are, and the descriptors, which are ours, open. Asked again it answers
    // the same. NotSupported: the block lies in a segment of cudaMalloc (`split`, `direct`, a
    // provider), which has no descriptor but a cudaIpcMemHandle; see base_allocation().
    // Also where check_may_leave() forbids it.
    virtual Result<ExportedBlock> export_block(Address address) = 0;
    // Maps what another process exported, one piece after the other, in an address range of its
    // size. The descriptors are the caller's, before and after.
    virtual Result<Address> import_block(int device, const std::vector<ExportedPiece>& pieces) = 0;
    // Waits for the device and unmaps; where that cannot be done, at the next import or drop.
    virtual Status drop_import(Address address) = 0;

    // Private pools. While begun, allocations on a stream for which `filter` holds come from the
    // pool; the last one begun is asked first. Its memory is never moved, unmapped or shared until
    // it was released as often as begun and retained, after which it is given back as its blocks
    // are freed.
    virtual Status begin_pool(int device, PoolId pool, std::function<bool(Stream)> filter) = 0;
    virtual Status end_pool(int device, PoolId pool) = 0;
    // Makes the pool, or adds a use. With a provider its memory comes from there.
    virtual Status retain_pool(int device, PoolId pool,
                               std::shared_ptr<SegmentProvider> provider) = 0;
    virtual Status release_pool(int device, PoolId pool) = 0;
    virtual std::uint64_t pool_use_count(int device, PoolId pool) = 0;
    // Others may be served from the pool's free memory before they fail.
    virtual Status set_pool_use_on_oom(int device, PoolId pool, bool use) = 0;
    // Each of the pool's blocks gets physical memory that no other block shares.
    virtual Status set_pool_no_split(int device, PoolId pool) = 0;
    // Gives back what no block of the pool uses.
    virtual Result<Bytes> trim_pool(int device, PoolId pool) = 0;
    virtual std::vector<PoolBytes> pool_bytes(int device) = 0;
    // What the pool has handed out, in address order; restore_pool() makes it so again: what is
    // allocated is freed, then the blocks of `state` are allocated where they were.
    virtual Result<std::vector<PoolBlock>> pool_state(int device, PoolId pool) = 0;
    virtual Result<PoolChange> restore_pool(int device, PoolId pool,
                                            const std::vector<PoolBlock>& state) = 0;
    // A stream capture begins or ends, as far as the caller is told (torch 2.13 and later): what
    // captures forbid is left alone in between, also for other streams.
    virtual void begin_capture(int device) = 0;
    virtual void end_capture(int device) = 0;

    // Gives back up to `bytes` of memory that no block uses; returns what was given back.
    virtual Result<Bytes> trim(int device, Bytes bytes = kMaxRequestBytes) = 0;
    // Makes at least `bytes` of physical memory ready, mapped for `stream`.
    virtual Status reserve(int device, Bytes bytes, Stream stream = nullptr) = 0;
    // The no-sharing mode for a part of the program: what this thread, or every thread, allocates
    // until end_region() has the given level, unless a pool is begun for it. NotSupported: the
    // device has no virtual memory management.
    virtual Status begin_region(Isolation level, bool all_threads) = 0;
    virtual Status end_region(bool all_threads) = 0;
    virtual IsolationReport isolation_report(int device) = 0;
    // What is known of each tensor of the levels from `packed` on, in the order of allocation.
    virtual std::vector<LedgerEntry> ledger(int device) = 0;
    // Waits for the device, and looks at the redzones and gaps of all live tensors; how many.
    virtual Result<std::int64_t> check_isolation(int device) = 0;

    // Physical bytes this allocator may hold on `device`. Below what is live: allocations fail
    // until enough is freed; idle memory above it is given back at once.
    virtual Status set_limit(int device, Bytes limit_bytes) = 0;
    virtual Bytes limit(int device) = 0;
    // The largest request that would succeed now, as far as can be told without trying.
    virtual Bytes largest_available_bytes(int device) = 0;

    // Called, without any lock, before giving up: returns whether it freed anything.
    using OutOfMemoryCallback = std::function<bool(const OutOfMemoryReport&)>;
    virtual void add_out_of_memory_callback(OutOfMemoryCallback callback) = 0;

    virtual int device_count() const = 0;
    virtual const Options& options() const = 0;
    // Exact when no other thread is allocating: thread caches are summed in.
    virtual DeviceStatistics statistics(int device) = 0;
    // The `version` of the statistics() that still holds: 0 if something is to be counted since.
    virtual std::uint64_t statistics_version(int device) const = 0;
    virtual void reset_peak_statistics(int device) = 0;
    virtual void reset_accumulated_statistics(int device) = 0;
    virtual std::vector<SegmentInfo> snapshot(int device) = 0;
    // What happens at this door; on from the start with the option event_ring_entries.
    virtual EventRing& events() = 0;
    // At most one; null takes it away. It must live as long as the allocator.
    virtual void set_event_sink(EventSink* sink) = 0;
    // The strategy in force: `paged` becomes `split` where mapping does not work.
    virtual Strategy strategy(int device) = 0;

    // Code::Forked in a child of the process that made this.
    virtual Status check_process() const = 0;
    // Recounts every invariant of DESIGN.md; the message of a failure names it and both sides.
    virtual Status audit() = 0;
};

}  // namespace gma
