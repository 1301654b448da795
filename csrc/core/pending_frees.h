// Frees that wait for streams that record_stream named: one event a stream and free, and a queue
// a stream, so that a slow stream holds back only what it uses.
//
// The device's lock is held for every call.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/slab.h"
#include "driver/driver.h"

namespace gma {

struct PendingFree {
    Block* block = nullptr;  // a large block, or nullptr
    Slab* slab = nullptr;    // the slab of a small object, or nullptr
    Address address = 0;
    Bytes bytes = 0;
    std::uint32_t fences_left = 0;
};

class PendingFrees {
public:
    PendingFrees(Driver& driver, int device) : driver_(driver), device_(device) {}
    PendingFrees(const PendingFrees&) = delete;
    PendingFrees& operator=(const PendingFrees&) = delete;
    ~PendingFrees();

    enum class Defer : std::uint8_t { No, Yes };
    // A stream that uses `address` beside its own. One that captures (Defer::Yes: one may) is not
    // asked for its id, which would end the capture; it is then known by its handle, which is
    // enough: what it does while it captures is not work of its own.
    Status record(Address address, Stream stream, Defer capture);
    bool recorded(Address address) const { return uses_.contains(address); }
    // Whether its free will wait for a stream.
    bool waits(Address address) const {
        const auto it = uses_.find(address);
        return it != uses_.end() && !it->second.empty();
    }
    // From now on it counts as recorded, if by no stream yet: its free shall come by here.
    void expect(Address address) { uses_[address]; }
    // The host waits for what the streams that use `address` have queued; they use it no more.
    Status finish_uses(Address address);

    // The block was freed. With `defer` (a capture is under way) its fences are recorded by
    // resume(). True: nothing needs to be waited for, the free is complete.
    Result<bool> add(PendingFree free, Defer defer);
    void resume();

    // Frees whose streams are done.
    std::vector<PendingFree> poll();
    // The host waits for the oldest fence; what is done then. Empty: nothing is pending.
    Result<std::vector<PendingFree>> wait_oldest();

    bool empty() const { return bytes_ == 0; }
    Bytes bytes() const { return bytes_; }
    Bytes large_bytes() const { return large_bytes_; }  // of blocks that are not slab objects

private:
    struct Use {
        Stream stream;
        std::uint64_t stream_id;
    };
    struct Fence {
        Event event;
        PendingFree* free;
        std::uint64_t order;
    };
    bool answers(Stream stream);  // may be asked for its id
    void count(const PendingFree& free, int sign);
    void retry_unfenced();
    bool fence(PendingFree* free, const std::vector<Use>& uses);
    void finish_front(std::deque<Fence>& queue, std::vector<PendingFree>& done);

    Driver& driver_;
    const int device_;
    std::unordered_map<Address, std::vector<Use>> uses_;
    std::vector<std::pair<PendingFree, std::vector<Use>>> deferred_;
    // Neither a fence nor a wait could be had; each counts as one of its fences_left.
    std::vector<std::pair<PendingFree*, std::vector<Use>>> unfenced_;
    std::unordered_map<std::uint64_t, std::deque<Fence>> queues_;  // by stream id
    Bytes bytes_ = 0;
    Bytes large_bytes_ = 0;
    std::uint64_t next_order_ = 0;
};

}  // namespace gma
