// The way of every allocation and free.
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include "torch/bridge/bridge_allocator.h"
#include "torch/bridge/errors.h"
#include "torch/bridge/settings.h"

namespace gma::bridge {
namespace {

constexpr std::size_t kProfilerRounding = 512;

std::size_t round_for_profiler(std::size_t bytes) {
    return (bytes + kProfilerRounding - 1) / kProfilerRounding * kProfilerRounding;
}

// For torch's CUDA sanitizer and the like.
void trace_deallocation(void* pointer) {
    if (const c10::impl::PyInterpreter* tracer = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
        (*tracer)->trace_gpu_memory_deallocation(c10::kCUDA,
                                                 reinterpret_cast<std::uintptr_t>(pointer));
    }
}

// PyTorch compares deleters, so ours is one function for life.
void delete_ours(void* pointer) {
    trace_deallocation(pointer);
    the_bridge()->release(pointer);
}

// What was allocated while caching was off. The process may be ending: nobody can be told.
void delete_uncached(void* pointer) { static_cast<void>(cudaFree(pointer)); }

bool caching_is_allowed() { return std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") == nullptr; }

// The device that this thread has told the runtime of. Until a thread has, the runtime looks its
// device up the long way at each question, behind a lock of the process.
thread_local constinit DeviceIndex bound_device __attribute__((tls_model("initial-exec"))) = -1;

void bind_thread(DeviceIndex device) {
    // Only where memory of the device is in use: a new context would cost half a gigabyte.
    if (!c10::cuda::hasPrimaryContext(device)) { return; }
    C10_CUDA_CHECK(cudaSetDevice(device));
    bound_device = device;
}

struct Place {
    DeviceIndex device;
    cudaStream_t stream;
};

// The runtime's answer costs as much as all the rest of an allocation; where there is one device,
// it is known.
Place current_place() {
    static const bool kOneDevice = c10::cuda::device_count() == 1;
    DeviceIndex device = 0;
    if (!kOneDevice) {
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
        if (bound_device != device) [[unlikely]] { bind_thread(device); }
    }
    return {device, c10::cuda::getCurrentCUDAStream(device).stream()};
}

void* obtain_uncached(std::size_t bytes) {
    void* pointer = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&pointer, bytes));
    return pointer;
}

}  // namespace

BridgeAllocator::BridgeAllocator(CoreAccess access, std::shared_ptr<cca::CUDAAllocator> previous)
    : access_(access),
      previous_(std::move(previous)),
      previous_is_native_(previous_->name() == "native"),
      caching_(caching_is_allowed()) {}

void BridgeAllocator::enable(bool value) {
    enabled_ = value;
    if (!value && isolated_) { warn_of_isolation("caching_allocator_enable(False)"); }
    caching_ = isolated_ || (value && caching_is_allowed());
}

c10::DeleterFnPtr deleter_of_ours() noexcept { return &delete_ours; }

c10::DeleterFnPtr BridgeAllocator::raw_deleter() const {
    return caching_ ? &delete_ours : &delete_uncached;
}

c10::DataPtr BridgeAllocator::allocate(std::size_t bytes) {
    const auto [device, stream] = current_place();
    void* pointer = nullptr;
    c10::DeleterFnPtr deleter = &delete_ours;
    if (bytes > 0) {
        if (!caching_.load(std::memory_order_relaxed)) [[unlikely]] {
            pointer = obtain_uncached(bytes);
            deleter = &delete_uncached;
        } else if (has_previous_routes_.load(std::memory_order_relaxed) &&
                   goes_to_previous(device, stream)) [[unlikely]] {
            return previous_->allocate(bytes);
        } else {
            pointer = obtain(bytes, device, stream);
        }
    }
    if (const c10::impl::PyInterpreter* tracer = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
        (*tracer)->trace_gpu_memory_allocation(c10::kCUDA,
                                               reinterpret_cast<std::uintptr_t>(pointer));
    }
    return {pointer, pointer, deleter, c10::Device(c10::kCUDA, device)};
}

void* BridgeAllocator::obtain(std::size_t bytes, DeviceIndex device, cudaStream_t stream) {
    if (history_.listening() || c10::memoryProfilingEnabled()) [[unlikely]] {
        return obtain_observed(bytes, device, stream);
    }
    Result<Address> address = started_core().allocate(device, bytes, stream);
    if (!address) [[unlikely]] { out_of_memory(address.status(), bytes, device, stream, nullptr); }
    return reinterpret_cast<void*>(*address);
}

void* BridgeAllocator::obtain_observed(std::size_t bytes, DeviceIndex device, cudaStream_t stream) {
    Core& core = this->core();
    auto context = history_.gather(RecordContext::STATE);
    const History::Cause cause(context);
    Result<Address> address = core.allocate(device, bytes, stream);
    if (!address) { out_of_memory(address.status(), bytes, device, stream, std::move(context)); }
    note_obtained(core, cause, {TraceEntry::ALLOC, device, *address, bytes, stream, {0, 0}},
                  std::move(context));
    return reinterpret_cast<void*>(*address);
}

// What a profiler or a tracker throws goes to who asked for the block. So nobody has it: its end is
// noted as its beginning was.
[[gnu::always_inline]] inline void BridgeAllocator::note_obtained(
    Core& core, const History::Cause& cause, History::Event event,
    std::shared_ptr<c10::GatheredContext>&& context) {
    void* const pointer = reinterpret_cast<void*>(event.address);
    bool is_reported = false;
    try {
        report_to_profiler(pointer, static_cast<std::int64_t>(round_for_profiler(event.bytes)),
                           event.device);
        is_reported = true;
        if (history_.listening()) {
            const auto block = has_pools_ ? core.describe(event.address) : std::nullopt;
            if (block) { event.pool = {block->pool_first, block->pool_second}; }
            history_.note_allocation(event, std::move(context));
        }
        if (cause.was_told()) [[unlikely]] { follow_trackers(core, cause); }
    } catch (...) {
        static_cast<void>(is_reported ? release_observed(core, pointer) : core.free(event.address));
        throw;
    }
}

// After a call in which the core told trackers of something.
void BridgeAllocator::follow_trackers(Core& core, const History::Cause& cause) {
    if (has_put_off_) { release_put_off(core); }
    cause.rethrow();
}

void BridgeAllocator::out_of_memory(const Status& status, std::size_t bytes, DeviceIndex device,
                                    cudaStream_t stream,
                                    std::shared_ptr<c10::GatheredContext> context) {
    if (status.code() != Code::OutOfMemory) { raise(status); }
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    {
        const c10::cuda::CUDAGuard guard(device);
        static_cast<void>(cudaMemGetInfo(&free_bytes, &total_bytes));
    }
    history_.note({TraceEntry::OOM, device, free_bytes, bytes, stream, {0, 0}}, std::move(context));
    const DeviceStatistics now = core().statistics(device);
    c10::reportOutOfMemoryToProfiler(
        static_cast<std::int64_t>(bytes), static_cast<std::size_t>(now.allocated_bytes[0].current),
        static_cast<std::size_t>(now.reserved_bytes[0].current), c10::Device(c10::kCUDA, device));
    std::vector<cca::OutOfMemoryObserver> observers;
    {
        const std::lock_guard guard(lock_);
        observers = out_of_memory_observers_;
    }
    for (const auto& observer : observers) {
        observer(device, bytes, std::min<std::size_t>(total_bytes, core().limit(device)),
                 free_bytes);
    }
    raise(status);
}

void BridgeAllocator::release(void* pointer) noexcept {
    const Status status = try_release(pointer);
    // Raw memory of a pool that was there before us may be freed with our deleter.
    if (!status.ok() && !release_previous(pointer)) [[unlikely]] {
        access_.note_error("free", status);
    }
}

Status BridgeAllocator::try_release(void* pointer) noexcept {
    Core* const core = core_.load(std::memory_order_acquire);
    if (pointer == nullptr || core == nullptr) { return {}; }
    if (history_.listening() || c10::memoryProfilingEnabled()) [[unlikely]] {
        return release_observed(*core, pointer);
    }
    return core->free(address_of(pointer));
}

Status BridgeAllocator::release_observed(Core& core, void* pointer) noexcept {
    if (history_.has_trackers()) [[unlikely]] { return release_tracked(core, pointer); }
    History::ObservedFree observed(history_);
    Status status = core.free_observed(address_of(pointer), observed);
    if (status.ok() && observed.was_told()) [[likely]] {
        report_free(pointer, observed.bytes(), observed.device());
    }
    return status;
}

Status BridgeAllocator::release_tracked(Core& core, void* pointer) noexcept {
    if (!History::enter_with_free()) { return put_off(pointer); }
    const auto block = core.describe(address_of(pointer));
    try {
        if (block) { history_.note_free(*block, history_.gather(RecordContext::ALL)); }
    } catch (...) {  // what is told is lost, the memory is not
    }
    Status status = core.free(address_of(pointer));
    if (block && status.ok()) {
        report_free(pointer, block->bytes, static_cast<DeviceIndex>(block->device));
    }
    if (has_put_off_) { release_put_off(core); }
    return status;
}

// A tracker frees while the core is locked: this call does it at its end, or the next one.
Status BridgeAllocator::put_off(void* pointer) noexcept {
    try {
        const std::lock_guard guard(lock_);
        put_off_.push_back(pointer);
        has_put_off_ = true;
        return {};
    } catch (...) { return {Code::OutOfMemory, "no host memory to put off a tracker's free"}; }
}

void BridgeAllocator::release_put_off(Core& core) noexcept {
    std::vector<void*> pointers;
    {
        const std::lock_guard guard(lock_);
        pointers.swap(put_off_);
        has_put_off_ = false;
    }
    for (void* const pointer : pointers) {
        const Status status = release_tracked(core, pointer);
        if (!status.ok()) { access_.note_error("free", status); }
    }
}

void BridgeAllocator::report_free(void* pointer, std::size_t bytes, DeviceIndex device) noexcept {
    try {
        report_to_profiler(pointer, -static_cast<std::int64_t>(round_for_profiler(bytes)), device);
    } catch (const std::exception&) {}
}

void BridgeAllocator::report_to_profiler(void* pointer, std::int64_t bytes, DeviceIndex device) {
    if (!c10::memoryProfilingEnabled()) { return; }
    const DeviceStatistics now = core().statistics(device);
    c10::reportMemoryUsageToProfiler(
        pointer, bytes, static_cast<std::size_t>(now.allocated_bytes[0].current),
        static_cast<std::size_t>(now.reserved_bytes[0].current), c10::Device(c10::kCUDA, device));
}

void* BridgeAllocator::raw_alloc(std::size_t bytes) {
    if (bytes == 0) { return nullptr; }
    const auto [device, stream] = current_place();
    return obtain_raw(bytes, device, stream);
}

void* BridgeAllocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
    if (bytes == 0) { return nullptr; }
    return obtain_raw(bytes, current_place().device, stream);
}

void* BridgeAllocator::obtain_raw(std::size_t bytes, DeviceIndex device, cudaStream_t stream) {
    if (!caching_) { return obtain_uncached(bytes); }
    if (has_previous_routes_.load(std::memory_order_relaxed) && goes_to_previous(device, stream)) {
        return previous_->raw_alloc_with_stream(bytes, stream);
    }
    return obtain(bytes, device, stream);
}

// Unlike a deleter it may throw, and it may be given anything.
void BridgeAllocator::raw_delete(void* pointer) {
    if (pointer == nullptr) { return; }
    trace_deallocation(pointer);
    const Status status = try_release(pointer);
    if (status.ok() || release_previous(pointer)) { return; }
    if (!caching_) {
        C10_CUDA_CHECK(cudaFree(pointer));
        return;
    }
    raise(status);
}

void BridgeAllocator::recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) {
    if (pointer.get() == nullptr) { return; }
    if (pointer.get_deleter() == &delete_ours) {
        check(core().record_stream(address_of(pointer.get()), stream.stream()));
    } else if (late_) {
        previous_->recordStream(pointer, stream);
    }
    // Anybody else's memory, such as that of another process, keeps its own order.
}

void* BridgeAllocator::getBaseAllocation(void* pointer, std::size_t* bytes) {
    if (late_ && !is_ours(pointer)) { return previous_->getBaseAllocation(pointer, bytes); }
    const BaseAllocation base = value_of(core().base_allocation(address_of(pointer)));
    if (bytes != nullptr) { *bytes = base.bytes; }
    return reinterpret_cast<void*>(base.address);
}

#if GMA_TORCH_AT_LEAST(13)
c10::DataPtr BridgeAllocator::allocateWithAddress(std::size_t bytes, void* address) {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    Core& core = this->core();
    auto context = history_.gather(RecordContext::STATE);
    const History::Cause cause(context);
    const Address placed = value_of(core.allocate_at(device, bytes, stream, address_of(address)));
    if (history_.listening() || c10::memoryProfilingEnabled()) [[unlikely]] {
        note_obtained(core, cause, {TraceEntry::ALLOC, device, placed, bytes, stream, {0, 0}},
                      std::move(context));
    }
    void* const pointer = reinterpret_cast<void*>(placed);
    return {pointer, pointer, &delete_ours, c10::Device(c10::kCUDA, device)};
}
#endif

void BridgeAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

}  // namespace gma::bridge
