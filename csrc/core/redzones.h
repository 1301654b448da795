// The level `packed`: frees that wait for the check of what lies behind them.
//
// Free memory holds kPattern, so a block's redzone and the rest up to its end hold it too, from the
// start. What is freed is collected. flush() queues, for each stream, one check of all redzones and
// one fill of all that the tensors wrote; after that the blocks may be handed out again in their
// stream's order, without waiting. What the checks find is known when the stream gets there.
//
// The device's lock is held for every call.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "core/ledger.h"
#include "core/pending_frees.h"

namespace gma {

class Redzones {
public:
    Redzones(Driver& driver, int device, Ledger& ledger)
        : driver_(driver), device_(device), ledger_(ledger) {}
    Redzones(const Redzones&) = delete;
    Redzones& operator=(const Redzones&) = delete;
    ~Redzones();

    // A freed block that no stream uses but the one it belongs to. `gap` is what must hold the
    // pattern; an empty one is not checked.
    void add(const PendingFree& free, Stream stream, std::uint64_t stream_id, ByteRange gap);
    // So many wait that one launch for all of them costs little for each.
    bool due() const { return count_ >= kBatchCount || bytes_ >= kBatchBytes; }
    bool empty() const { return count_ == 0; }
    Bytes large_bytes() const { return large_bytes_; }  // of blocks that are not slab objects
    // Those whose memory may be used again. A stream whose fill the driver refuses keeps its own.
    std::vector<PendingFree> flush();

    bool checking() const { return !checks_.empty(); }
    // Tells the ledger what checks that are done have found; with `wait` all of them.
    void collect(bool wait);
    std::int64_t unchecked_count() const { return unchecked_count_; }

private:
    static constexpr std::size_t kBatchCount = 256;
    static constexpr Bytes kBatchBytes = 64_MiB;

    struct Item {
        PendingFree free;
        ByteRange gap;
        LedgerEntry tensor;
        bool looked_at = false;  // its memory alone was not refilled
    };
    using Batch = std::vector<Item>;
    struct RunningCheck {
        Check check;
        std::vector<LedgerEntry> tensors;  // by the ranges' numbers
    };
    void start_check(Stream stream, Batch& batch);
    bool refill(Stream stream, const Batch& batch);

    Driver& driver_;
    const int device_;
    Ledger& ledger_;
    std::map<std::pair<Stream, std::uint64_t>, Batch> batches_;
    std::size_t count_ = 0;
    Bytes bytes_ = 0;
    Bytes large_bytes_ = 0;
    std::deque<RunningCheck> checks_;
    std::int64_t unchecked_count_ = 0;
};

}  // namespace gma
