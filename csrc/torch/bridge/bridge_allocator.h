// PyTorch's CUDA allocator interface over our core: every method of
// c10::cuda::CUDACachingAllocator::CUDAAllocator, for torch 2.11 to 2.15.
//
// One object, made once and never destroyed: tensors are freed while the process ends. `previous_`
// is the allocator that was there before, one of PyTorch's own two where we are installed.
// Installed late, it goes on to own what it has handed out: pointers, pools and graphs that the
// core does not know are passed on to it.
//
//   memory.cpp      allocate, free, record_stream    snapshot.cpp    segments and traces
//   statistics.cpp  counters                         history.cpp     recording, observers
//   pools.cpp       private pools, checkpoints       devices.cpp     peers, limits, sharing
//   previous.cpp    what stays with `previous_`
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "torch/bridge/core_access.h"
#include "torch/bridge/history.h"
#include "torch/bridge/torch_version.h"

namespace gma::bridge {

namespace cca = c10::cuda::CUDACachingAllocator;
using Core = gma::Allocator;  // inside torch's classes the bare name is torch's
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;

class BridgeAllocator final : public cca::CUDAAllocator {
public:
    BridgeAllocator(CoreAccess access, std::shared_ptr<cca::CUDAAllocator> previous);

    // Memory.
    c10::DataPtr allocate(std::size_t bytes) override;
    c10::DeleterFnPtr raw_deleter() const override;
    void copy_data(void* to, const void* from, std::size_t bytes) const override;
    void* raw_alloc(std::size_t bytes) override;
    void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
    void raw_delete(void* pointer) override;
    void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override;
    using cca::CUDAAllocator::recordStream;
    void* getBaseAllocation(void* pointer, std::size_t* bytes) override;
#if GMA_TORCH_AT_LEAST(13)
    c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override;
#endif

    // Life.
    void init(int device_count) override;
    bool initialized() override {
        return core_.load(std::memory_order_acquire) != nullptr && !being_registered_;
    }
    void enable(bool value) override;
    bool isEnabled() const override { return enabled_; }
    void emptyCache(MempoolId_t pool) override;
    std::string name() override { return "gpumem_alloc"; }

    // Statistics.
    DeviceStats getDeviceStats(DeviceIndex device) override;
    void resetAccumulatedStats(DeviceIndex device) override;
    void resetPeakStats(DeviceIndex device) override;
    std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
    void cacheInfo(DeviceIndex device, std::size_t* largest) override;

    // Snapshots and history.
    cca::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override;
    bool isHistoryEnabled() override { return history_.recording() || previous_records(); }
    void recordHistory(bool enabled, cca::CreateContextFn gather, std::size_t max_entries,
                       RecordContext when, bool clear,
                       const std::vector<std::string>& skip_actions) override;
    void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& values) override;
    void pushCompileContext(std::string& context) override;
    void popCompileContext() override;
    void setUserMetadata(const std::string& metadata) override;
    std::string getUserMetadata() override;
    void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override;
    void attachAllocatorTraceTracker(cca::AllocatorTraceTracker tracker) override;
#if GMA_TORCH_AT_LEAST(12)
    std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* pointer) override;
    void attachOomRejectionObserver(cca::OomRejectionObserver observer) override;
#endif
#if GMA_TORCH_AT_LEAST(14)
    bool supportsUserMetadata() override { return true; }
    void annotateMemory(const void* pointer, const std::string& metadata) override;
#endif

    // Private pools.
    void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                             std::function<bool(cudaStream_t)> filter) override;
    void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
    void releasePool(DeviceIndex device, MempoolId_t pool) override;
    int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
    void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                            std::shared_ptr<cca::CUDAAllocator> allocator) override;
    void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override;
    void setNoSplit(DeviceIndex device, MempoolId_t pool) override;
    bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                  const std::unordered_set<void*>& expected) override;
    std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex device,
                                                            MempoolId_t pool) override;
    cca::CheckpointDelta setCheckpointPoolState(
        DeviceIndex device, std::shared_ptr<cca::AllocatorState> state) override;
#if GMA_TORCH_AT_LEAST(13)
    void markCaptureBegin(DeviceIndex device) override { core().begin_capture(device); }
    void markCaptureEnd(DeviceIndex device) override { core().end_capture(device); }
#endif

    // Devices and processes.
    double getMemoryFraction(DeviceIndex device) override;
    void setMemoryFraction(double fraction, DeviceIndex device) override;
    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
    cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device,
                            std::size_t bytes, cudaStream_t stream, bool peer_access) override;
    cca::ShareableHandle shareIpcHandle(void* pointer) override;
    std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

    // Installed after `previous_` was used: what it holds stays with it.
    void set_late() { late_ = true; }
    // Once installed late: what was asked of `previous_`, and can be read, holds for us.
    void take_over();
    // torch registers an allocator only while the current one has not been started.
    void set_being_registered(bool value) { being_registered_ = value; }
    // Whether the no-sharing mode keeps the memory at `pointer` to its device and this process.
    bool keeps_on_device(const void* pointer) {
        return !core().check_may_leave(address_of(pointer)).ok();
    }
    // For the one deleter.
    void release(void* pointer) noexcept;

private:
    enum class Owner : std::uint8_t { Ours, Previous };
    // A pool that was begun and takes what its filter lets through.
    struct Route {
        DeviceIndex device;
        MempoolId_t pool;
        std::function<bool(cudaStream_t)> filter;
        Owner owner;
    };

    // For every call that may wait for a lock of the core's.
    Core& core() {
        if (history_.has_trackers()) [[unlikely]] { History::enter(); }
        return started_core();
    }
    // Makes the core where torch has not called init() yet.
    Core& started_core() {
        Core* core = core_.load(std::memory_order_acquire);
        return core != nullptr ? *core : start();
    }
    Core& start();
    DeviceStats counted(Core& core, DeviceIndex device, const DeviceStatistics& ours);
    void* obtain(std::size_t bytes, DeviceIndex device, cudaStream_t stream);
    void* obtain_raw(std::size_t bytes, DeviceIndex device, cudaStream_t stream);
    void* obtain_observed(std::size_t bytes, DeviceIndex device, cudaStream_t stream);
    void note_obtained(Core& core, const History::Cause& cause, History::Event event,
                       std::shared_ptr<c10::GatheredContext>&& context);
    void follow_trackers(Core& core, const History::Cause& cause);
    [[noreturn]] void out_of_memory(const Status& status, std::size_t bytes, DeviceIndex device,
                                    cudaStream_t stream,
                                    std::shared_ptr<c10::GatheredContext> context);
    Status try_release(void* pointer) noexcept;
    bool release_previous(void* pointer) noexcept;
    Status release_observed(Core& core, void* pointer) noexcept;
    Status release_tracked(Core& core, void* pointer) noexcept;
    Status put_off(void* pointer) noexcept;
    void release_put_off(Core& core) noexcept;
    void follow_history();
    void report_free(void* pointer, std::size_t bytes, DeviceIndex device) noexcept;
    void report_to_profiler(void* pointer, std::int64_t bytes, DeviceIndex device);
    bool is_ours(const void* pointer) { return core().describe(address_of(pointer)).has_value(); }
    bool is_previous_pool(DeviceIndex device, MempoolId_t pool);
    bool goes_to_previous(DeviceIndex device, cudaStream_t stream);
    void add_route(Route route);
    void remove_route(DeviceIndex device, MempoolId_t pool);
    void note_routes_locked();
    bool previous_records();
    static Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }
    static PoolId pool_of(const MempoolId_t& pool) { return {pool.first, pool.second}; }

    const CoreAccess access_;
    const std::shared_ptr<cca::CUDAAllocator> previous_;
    const bool previous_is_native_;  // it has snapshots and history
    std::atomic<Core*> core_{nullptr};
    std::atomic<bool> enabled_{true};
    // Enabled and not forbidden by the environment, or isolated: cudaMalloc would go around that.
    std::atomic<bool> caching_;
    std::atomic<bool> isolated_{false};  // all of the program, not just regions
    std::atomic<bool> late_{false};
    std::atomic<bool> being_registered_{false};
    History history_;

    std::mutex lock_;            // of what follows
    std::vector<Route> routes_;  // late only, oldest first
    std::atomic<bool> has_previous_routes_{false};
    std::atomic<bool> has_pools_{false};  // a private pool was ever begun
    std::vector<void*> put_off_;          // frees of trackers, while the core was locked
    std::atomic<bool> has_put_off_{false};
    // As set, by device, and the limit that came of it: a later limit is another fraction.
    struct Fraction {
        double fraction;
        Bytes limit;
    };
    std::vector<std::optional<Fraction>> fractions_;
    std::vector<cca::OutOfMemoryObserver> out_of_memory_observers_;
#if GMA_TORCH_AT_LEAST(12)
    std::vector<cca::OomRejectionObserver> rejection_observers_;
#endif
};

// What frees memory of the core, whether caching is on now or not.
c10::DeleterFnPtr deleter_of_ours() noexcept;
// The one object, once it is made.
BridgeAllocator* the_bridge() noexcept;

}  // namespace gma::bridge
