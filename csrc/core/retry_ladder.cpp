// Note [Retry ladder]: what is tried, in order, before an allocation fails.
//
//   cached -> grow in budget -> move idle chunks -> make odd chunks anew -> make the stream wait
//   -> drain thread caches -> grow to the limit -> free memory of private pools that lend theirs
//   -> wait for recorded streams, oldest fence first -> wait for the fences that suffice
//   -> out-of-memory callbacks, then once more -> out of memory
//
// The host waits only in the last steps, and only for fences: for the device only where no fence
// can speak, after a stream was destroyed or a graph's pool released.
#include <algorithm>
#include <string>

#include "base/format.h"
#include "core/device_heap.h"
#include "core/out_of_memory.h"

namespace gma {
Result<Block*> DeviceHeap::obtain_locked(const Request& request, std::unique_lock<std::mutex>& lock,
                                         Bytes requested_bytes) {
    note_change();
    for (auto& cache : caches_) { flush_locked(*cache); }  // whatever other threads have parked
    flush_redzones_locked();
    Result<Block*> block = climb_locked(request, Ladder::First);
    strategy_->set_limit(limit_bytes_);
    if (block && *block != nullptr) { return block; }
    if (!block && block.status().code() != Code::OutOfMemory) { return block; }
    OutOfMemoryReport report = report_locked(request, requested_bytes, "");
    lock.unlock();
    const bool freed_some = run_callbacks(report);
    lock.lock();
    note_change();  // a callback may have asked for statistics
    if (freed_some) {
        block = climb_locked(request, Ladder::AfterCallbacks);
        strategy_->set_limit(limit_bytes_);
        if (block && *block != nullptr) { return block; }
    }
    ++statistics_.num_ooms;
    report = report_locked(request, requested_bytes, "");
    return Status(Code::OutOfMemory, out_of_memory_text(report));
}

Result<Block*> DeviceHeap::climb_locked(const Request& request, Ladder attempt) {
    if (attempt == Ladder::AfterCallbacks) { ++statistics_.num_alloc_retries; }
    if (Block* block = strategy_->take_cached(request); block != nullptr) { return block; }
    if (!request.capturing) { strategy_->poll(); }
    Result<Block*> block = nullptr;
    for (int step = 0; step < kEffortCount; ++step) {
        const auto effort = static_cast<Effort>(step);
        if (effort == Effort::Limit) { drain_caches_locked(); }
        if (effort == Effort::HostWait) {
            if (Block* lent = borrow_from_pools_locked(request); lent != nullptr) { return lent; }
            if (request.capturing) { break; }
            ++statistics_.num_alloc_retries;
            block = wait_for_pending_locked(request);
            if (!block || *block != nullptr) { return block; }
        }
        block = try_locked(request, effort);
        if (block && *block != nullptr) {
            mapped_once_ |= (*block)->arena != nullptr;
            return block;
        }
        if (!block) {
            if (strategy_->provides(request.pool)) { return block; }
            if (Status status = fall_back_to_split_locked(block.status()); !status.ok()) {
                return status;
            }
            step = -1;
        }
    }
    return block;
}

// A card that is full, whatever the limit says, lets us have what we hold and what it has left, in
// handles small enough for it: that is the limit for the rest of the climb.
Result<Block*> DeviceHeap::try_locked(const Request& request, Effort effort) {
    Result<Block*> block = strategy_->obtain(request, effort);
    if (block || block.status().code() != Code::OutOfMemory) { return block; }
    const Result<CardMemory> card = request.capturing ? CardMemory{} : driver_.card_memory(device_);
    if (card && card->free_bytes >= properties_.page_bytes) {
        strategy_->set_limit(
            std::min(limit_bytes_, strategy_->reserved_bytes() + card->free_bytes));
        block = strategy_->obtain(request, effort);
        if (block || block.status().code() != Code::OutOfMemory) { return block; }
    }
    strategy_->set_limit(std::min(limit_bytes_, strategy_->reserved_bytes()));
    return nullptr;
}

// One fence after another, until what they held back suffices.
Result<Block*> DeviceHeap::wait_for_pending_locked(const Request& request) {
    while (!pending_.empty()) {
        ++statistics_.num_sync_all_streams;
        Result<std::vector<PendingFree>> done = pending_.wait_oldest();
        if (!done) { return done.status(); }
        if (done->empty()) { break; }
        complete_locked(*done);
        if (Block* block = strategy_->take_cached(request); block != nullptr) { return block; }
        Result<Block*> block = try_locked(request, Effort::Limit);
        if (!block || *block != nullptr) { return block; }
    }
    return nullptr;
}

bool DeviceHeap::run_callbacks(const OutOfMemoryReport& report) {
    bool freed_some = false;
    for (const auto& callback : listeners_.out_of_memory) { freed_some |= callback(report); }
    return freed_some;
}

// Where mapping does not work at all (its first call fails), whole segments do.
Status DeviceHeap::fall_back_to_split_locked(const Status& why) {
    if (kind_ != Strategy::Paged || level_ != Isolation::Off || mapped_once_) { return why; }
    kind_ = Strategy::Split;
    small_path_open_ = fast_path_open_ = false;
    strategy_->replace_own(make_strategy(kind_));
    return {};
}

OutOfMemoryReport DeviceHeap::report_locked(const Request& request, Bytes requested_bytes,
                                            std::string cause) {
    for (auto& cache : caches_) { flush_locked(*cache); }
    OutOfMemoryReport report;
    report.device = device_;
    report.requested_bytes = requested_bytes;
    if (Result<CardMemory> card = driver_.card_memory(device_); card) {
        report.card_free_bytes = card->free_bytes;
        report.card_total_bytes = card->total_bytes;
    }
    report.limit_bytes = limit_bytes_;
    report.live_bytes = static_cast<Bytes>(statistics_.allocated_bytes[0].current);
    report.reserved_bytes = strategy_->reserved_bytes();
    report.pending_bytes =
        pending_.bytes() + strategy_->counters().waiting_bytes + redzones_.large_bytes();
    report.private_pool_bytes = strategy_->counters().private_pool_bytes;
    report.largest_free_bytes = strategy_->largest_free_bytes();
    const Bytes needed = report.live_bytes + request.bytes;
    if (!cause.empty()) {
        report.cause = std::move(cause);
    } else if (needed > limit_bytes_) {
        report.cause =
            "Live tensors and the request together exceed the limit: make them smaller "
            "or fewer (batch size, gradient checkpointing).";
    } else if (report.card_free_bytes + report.reserved_bytes < needed) {
        report.cause = "Other processes or libraries hold the rest of the card's memory.";
    } else if (level_of(request.pool) >= Isolation::Tensor &&
               report.reserved_bytes > report.live_bytes + report.pending_bytes) {
        report.cause = "With isolation each tensor has pages of its own, " +
                       bytes_text(properties_.page_bytes) +
                       " at least: use isolation:packed, or fewer and larger tensors.";
    } else {
        report.cause =
            "Free memory lies on pages that live tensors share, or belongs to private "
            "pools or streams being captured.";
    }
    return report;
}

}  // namespace gma
