// Snapshots and history in torch's structs.
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "torch/bridge/bridge_allocator.h"
#include "torch/bridge/errors.h"

namespace gma::bridge {
namespace {

constexpr Bytes kSmallSegmentBytes = 2_MiB;  // PyTorch's: a segment above it is `large`
// NCCL is given a pool's segments in the order of this count, and PyTorch fails on a negative one.
constexpr std::uint64_t kLargestCount = std::numeric_limits<std::int32_t>::max();

c10::CachingDeviceAllocator::SegmentInfo segment_of(const SegmentInfo& ours,
                                                    const History& history) {
    c10::CachingDeviceAllocator::SegmentInfo segment;
    segment.device = static_cast<DeviceIndex>(ours.device);
    segment.registration_counter = static_cast<std::int32_t>(ours.serial & kLargestCount);
    segment.address = ours.address;
    segment.total_size = ours.bytes;
    segment.stream = ours.stream;
    segment.is_large = ours.bytes > kSmallSegmentBytes;
    segment.is_expandable = ours.is_expandable;
    segment.owner_private_pool_id = {ours.pool.first, ours.pool.second};
    segment.blocks.reserve(ours.blocks.size());
    for (const BlockInfo& from : ours.blocks) {
        auto& block = segment.blocks.emplace_back();
        block.size = from.bytes;
        block.requested_size = from.requested_bytes;
        block.allocated = from.state == BlockState::Allocated;
        block.active = from.state != BlockState::Free;
        if (block.allocated) {
            block.context_when_allocated = history.context_of(from.address);
            segment.allocated_size += from.bytes;
        }
        if (block.active) {
            segment.active_size += from.bytes;
            segment.requested_size += from.requested_bytes;
        }
    }
    return segment;
}

void add_in_order(std::vector<TraceEntry>& entries, std::vector<TraceEntry>&& ours) {
    const auto earlier = [](const TraceEntry& left, const TraceEntry& right) {
        return left.time_.t_ < right.time_.t_;
    };
    const auto theirs = static_cast<std::ptrdiff_t>(entries.size());
    std::move(ours.begin(), ours.end(), std::back_inserter(entries));
    std::inplace_merge(entries.begin(), entries.begin() + theirs, entries.end(), earlier);
}

}  // namespace

// PyTorch's own snapshot gives the settings, the pinned memory of later versions, and what the
// previous allocator still holds.
cca::SnapshotInfo BridgeAllocator::snapshot(MempoolId_t pool, bool include_traces) {
    Core& core = this->core();
    check(core.check_process());  // a forked child has our locks as they were: perhaps held
    cca::SnapshotInfo info;
    if (previous_is_native_) { info = previous_->snapshot(pool, include_traces && late_); }
    const auto devices = static_cast<std::size_t>(core.device_count());
    if (info.device_traces.size() < devices) { info.device_traces.resize(devices); }
    for (std::size_t device = 0; device < devices; ++device) {
        for (const SegmentInfo& ours : core.snapshot(static_cast<int>(device))) {
            const MempoolId_t id{ours.pool.first, ours.pool.second};
            if (pool != MempoolId_t{0, 0} && pool != id) { continue; }
            info.segments.push_back(segment_of(ours, history_));
        }
        const auto index = static_cast<DeviceIndex>(device);
        if (include_traces) { add_in_order(info.device_traces[device], history_.entries(index)); }
        // Comes after what was copied, as in PyTorch: it ties later events to this snapshot.
        history_.note({TraceEntry::SNAPSHOT,
                       index,
                       0,
                       static_cast<std::size_t>(
                           core.statistics(static_cast<int>(device)).reserved_bytes[0].current),
                       nullptr,
                       {0, 0}},
                      nullptr);
    }
    if (include_traces) {
        for (auto& annotation : history_.annotations()) {
            info.external_annotations.push_back(std::move(annotation));
        }
    }
    return info;
}

void BridgeAllocator::recordHistory(bool enabled, cca::CreateContextFn gather,
                                    std::size_t max_entries, RecordContext when, bool clear,
                                    const std::vector<std::string>& skip_actions) {
    check(core().check_process());
    history_.set({enabled, gather, max_entries, when, clear, skip_actions});
    follow_history();
    if (previous_records()) {  // it was asked to before us, and ends with ours
        previous_->recordHistory(enabled, gather, max_entries, when, clear, skip_actions);
    }
}

// Of threads that change what is listened to, the last one here has seen all that was changed.
void BridgeAllocator::follow_history() {
    Core& core = this->core();
    const std::lock_guard guard(lock_);
    core.set_event_sink(history_.listening() ? &history_ : nullptr);
}

void BridgeAllocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& values) {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    history_.annotate(values, device);
}

void BridgeAllocator::pushCompileContext(std::string& context) {
    history_.push_compile_context(context);
}
void BridgeAllocator::popCompileContext() { history_.pop_compile_context(); }
void BridgeAllocator::setUserMetadata(const std::string& metadata) {
    history_.set_metadata(metadata);
}
std::string BridgeAllocator::getUserMetadata() { return history_.metadata(); }

void BridgeAllocator::attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) {
    const std::lock_guard guard(lock_);
    out_of_memory_observers_.push_back(std::move(observer));
}

void BridgeAllocator::attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) {
    check(core().check_process());
    history_.add_tracker(std::move(tracker));
    follow_history();
}

#if GMA_TORCH_AT_LEAST(12)
std::shared_ptr<c10::GatheredContext> BridgeAllocator::getContextForPointer(const void* pointer) {
    if (late_ && !is_ours(pointer)) { return previous_->getContextForPointer(pointer); }
    return history_.context_of(address_of(pointer));
}

// Called when PyTorch refuses a request before it asks the card; ours always asks.
void BridgeAllocator::attachOomRejectionObserver(cca::OomRejectionObserver observer) {
    const std::lock_guard guard(lock_);
    rejection_observers_.push_back(std::move(observer));
}
#endif

#if GMA_TORCH_AT_LEAST(14)
void BridgeAllocator::annotateMemory(const void* pointer, const std::string& metadata) {
    const auto block = core().describe(address_of(pointer));
    if (late_ && !block) { return previous_->annotateMemory(pointer, metadata); }
    TORCH_CHECK(block.has_value(), "no allocation of gpumem_alloc starts at ", pointer);
    history_.note_annotation({TraceEntry::ANNOTATE,
                              static_cast<DeviceIndex>(block->device),
                              block->address,
                              block->bytes,
                              reinterpret_cast<void*>(block->stream),
                              {block->pool_first, block->pool_second}},
                             metadata, history_.gather(RecordContext::ALLOC));
}
#endif

}  // namespace gma::bridge
