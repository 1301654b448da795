// The allocator as its doors see it. One object serves all devices of a process.
//
// Layers below it: device_heap (one per device: lock, streams, fences, limit, retry ladder) ->
// strategy (paged, split, direct) -> driver. Nothing here knows torch or CUDA.
//
// No function throws. All may be called from any thread. After a fork the child gets Code::Forked,
// or nothing where there is no status; its frees do nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "core/options.h"
#include "core/statistics.h"
#include "driver/driver.h"

namespace gma {

class DeviceHeap;
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

class Allocator {
public:
    // `driver` must outlive the allocator. Fails with the driver's status if it cannot be asked.
    static Result<std::unique_ptr<Allocator>> create(Driver& driver, const Options& options);
    ~Allocator();

    // 0 bytes succeed with address 0. Out of memory is Code::OutOfMemory with the whole report as
    // its message (see out_of_memory.h).
    Result<Address> allocate(int device, Bytes bytes, Stream stream);
    // 0 is ignored. Foreign pointers and double frees are Code::InvalidValue.
    Status free(Address address);
    // From now on `address` may be in use by `stream` too, until the work queued there at the time
    // of its free is done.
    Status record_stream(Address address, Stream stream);

    // Where the range that holds `address` starts, and its size (cudaIpcMemHandle needs it).
    Result<BaseAllocation> base_allocation(Address address);
    // Chunks under an exported block are not moved, reused or released until unpin().
    Status pin(Address address);
    Status unpin(Address address);

    // Private pools. While begun, allocations on a stream for which `filter` holds come from the
    // pool; the last one begun is asked first. Its memory is never moved, unmapped or shared until
    // it was released as often as begun, after which it is given back as its blocks are freed.
    Status begin_pool(int device, PoolId pool, std::function<bool(Stream)> filter);
    Status end_pool(int device, PoolId pool);
    Status release_pool(int device, PoolId pool);

    // Gives back up to `bytes` of memory that no block uses; returns what was given back.
    Result<Bytes> trim(int device, Bytes bytes = kMaxRequestBytes);
    // Makes at least `bytes` of physical memory ready, mapped for `stream`.
    Status reserve(int device, Bytes bytes, Stream stream = nullptr);
    // Physical bytes this allocator may hold on `device`. Below what is live: allocations fail
    // until enough is freed; idle memory above it is given back at once.
    Status set_limit(int device, Bytes limit_bytes);
    Bytes limit(int device);

    // Called, without any lock, before giving up: returns whether it freed anything.
    using OutOfMemoryCallback = std::function<bool(const OutOfMemoryReport&)>;
    void add_out_of_memory_callback(OutOfMemoryCallback callback);

    int device_count() const;
    const Options& options() const;
    // Exact when no other thread is allocating: thread caches are summed in.
    DeviceStatistics statistics(int device);
    void reset_peak_statistics(int device);
    void reset_accumulated_statistics(int device);
    std::vector<SegmentInfo> snapshot(int device);
    // What happens at this door; on from the start with the option event_ring_entries.
    EventRing& events();
    // The strategy in force: `paged` becomes `split` where mapping does not work.
    Strategy strategy(int device);

    // Code::Forked in a child of the process that made this.
    Status check_process() const;
    // Recounts every invariant of DESIGN.md; the message of a failure names it and both sides.
    Status audit();

private:
    struct State;
    explicit Allocator(std::unique_ptr<State> state);
    void note_allocation(DeviceHeap& heap, int device, Bytes bytes, Stream stream,
                         const Result<Address>& address);
    std::unique_ptr<State> state_;
};

}  // namespace gma
