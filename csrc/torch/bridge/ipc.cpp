#include "torch/bridge/ipc.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <sys/resource.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "torch/bridge/errors.h"
#include "torch/bridge/ipc_descriptors.h"
#include "torch/bridge/ipc_handle.h"

namespace gma::bridge {
namespace {

using c10::cuda::CUDACachingAllocator::ShareableHandle;

constexpr Bytes kCudaMallocPage = 2_MiB;
std::atomic<bool> is_exclusive{false};

// Never destroyed: tensors of other processes are let go while this one ends.
struct OpenMemory {
    using Key = std::pair<std::string, int>;  // handle, device
    std::mutex mutex;
    std::map<Key, std::weak_ptr<void>> pointers;
};
OpenMemory& open_memory() {
    static auto* const kOpenMemory = new OpenMemory();
    return *kOpenMemory;
}

[[noreturn]] void refuse_neighbours(Bytes bytes, Bytes other_bytes) {
    TORCH_CHECK(false, "gpumem_alloc: this tensor's memory (", bytes,
                " bytes) shares pages with other memory (", other_bytes,
                " bytes).\n"
                "The receiver would see that too, and gpumem_alloc.share_exclusively(True) is in "
                "force.\n"
                "Allocate what is sent inside `with gpumem_alloc.exclusive_pages():`, or clone it "
                "there before it is sent.");
}

Bytes requested_bytes(Allocator& core, Address address) {
    const std::optional<TraceRecord> block = core.describe(address);
    return block ? block->bytes : 0;
}

// The pages were somebody's before.
void clear_behind(Address address, Bytes own_bytes, Bytes all_bytes) {
    if (own_bytes >= all_bytes) { return; }
    int device = 0;
    C10_CUDA_CHECK(cudaGetDevice(&device));
    const auto stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
    C10_CUDA_CHECK(cudaMemsetAsync(reinterpret_cast<void*>(address + own_bytes), 0,
                                   all_bytes - own_bytes, stream.stream()));
}

// Whole segments: CUDA exports all of one, and the pages that it lies on.
ShareableHandle share_segment(Allocator& core, Address address, const Status& why) {
    const BaseAllocation base = value_of(core.base_allocation(address));
    cudaIpcMemHandle_t cuda_handle = {};
    const cudaError_t error =
        cudaIpcGetMemHandle(&cuda_handle, reinterpret_cast<void*>(base.address));
    if (error != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        TORCH_CHECK(false, "gpumem_alloc: this tensor cannot be sent to another process: ",
                    cudaGetErrorString(error), ".\n", why.message(), ".\n",
                    "Send a CPU tensor, or allocate it with gpumem_alloc.enable("
                    "strategy=\"split\").");
    }
    if (is_exclusive) {
        const Bytes bytes = requested_bytes(core, address);
        const bool is_whole = base.address == address && address % kCudaMallocPage == 0 &&
                              base.bytes % kCudaMallocPage == 0 &&
                              base.bytes - bytes < kCudaMallocPage;
        if (!is_whole) { refuse_neighbours(bytes, base.bytes - bytes); }
        clear_behind(address, bytes, base.bytes);
    }
    const std::string text(reinterpret_cast<const char*>(&cuda_handle), sizeof(cuda_handle));
    return {static_cast<std::ptrdiff_t>(address - base.address), write_segment_handle(text)};
}

// An allocated block of ours, and its memory has no descriptors to give: there are too many
// already, more often than not.
[[noreturn]] void cannot_export(const Status& why) {
    rlimit files = {};
    static_cast<void>(::getrlimit(RLIMIT_NOFILE, &files));
    TORCH_CHECK(false,
                "gpumem_alloc: this tensor cannot be sent to another process: ", why.message(),
                ".\nEach physical piece of what is sent needs a file descriptor, and this process "
                "may have ",
                files.rlim_cur,
                ".\nAllow more (ulimit -n), send less at a time, or larger pieces: "
                "gpumem_alloc.enable(preset=\"fast\").");
}

void* open_pieces(Allocator& core, const std::string& handle, SharedMemory memory, int device) {
    const std::vector<Descriptor> descriptors = descriptors_for(handle, memory);
    TORCH_CHECK(descriptors.size() == memory.pieces.size(), "gpumem_alloc: a tensor was sent with ",
                memory.pieces.size(), " pieces of memory and came with ", descriptors.size());
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
        memory.pieces[i].descriptor = descriptors[i].number();
    }
    return reinterpret_cast<void*>(value_of(core.import_block(device, memory.pieces)));
}

void* open_segment(const std::string& text) {
    cudaIpcMemHandle_t cuda_handle;
    std::memcpy(&cuda_handle, text.data(), sizeof(cuda_handle));
    void* pointer = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&pointer, cuda_handle, cudaIpcMemLazyEnablePeerAccess));
    return pointer;
}

void close_segment(void* pointer, int device) noexcept {
    int current = device;
    static_cast<void>(cudaGetDevice(&current));
    static_cast<void>(cudaSetDevice(device));
    const cudaError_t error = cudaIpcCloseMemHandle(pointer);
    static_cast<void>(cudaSetDevice(current));
    // CUDA may be gone already, and the next call of torch must not trip over it.
    if (error != cudaSuccess) { static_cast<void>(cudaGetLastError()); }
}

void forget(const OpenMemory::Key& key) noexcept {
    OpenMemory& all = open_memory();
    const std::lock_guard guard(all.mutex);
    const auto found = all.pointers.find(key);
    // It may have been opened again since, for somebody else.
    if (found != all.pointers.end() && found->second.expired()) { all.pointers.erase(found); }
}

std::shared_ptr<void> open_anew(Allocator& core, const OpenMemory::Key& key) {
    const auto& [handle, device] = key;
    if (std::optional<SharedMemory> memory = read_handle(handle)) {
        void* const pointer = open_pieces(core, handle, std::move(*memory), device);
        return {pointer, [key, &core](void* mapped) noexcept {
                    forget(key);
                    static_cast<void>(core.drop_import(reinterpret_cast<Address>(mapped)));
                }};
    }
    if (const std::optional<std::string> text = read_segment_handle(handle)) {
        return {open_segment(*text), [key](void* mapped) noexcept {
                    forget(key);
                    close_segment(mapped, key.second);
                }};
    }
    TORCH_CHECK(false,
                "gpumem_alloc: the sender of this CUDA tensor shares memory in a form that is not "
                "known here.\n"
                "It is most likely PyTorch's own allocator with expandable_segments:True.\n"
                "Call gpumem_alloc.enable() in the sender too, or set "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False there.");
}

}  // namespace

void set_exclusive(bool exclusive) { is_exclusive = exclusive; }

ShareableHandle share(Allocator& core, void* pointer) {
    const auto address = reinterpret_cast<Address>(pointer);
    Result<ExportedBlock> block = core.export_block(address);
    if (!block && block.status().code() == Code::NotSupported) {
        return share_segment(core, address, block.status());
    }
    if (block.status().code() == Code::DriverFailed) { cannot_export(block.status()); }
    check(block.status());
    if (is_exclusive) {
        if (block->other_bytes > 0) { refuse_neighbours(block->bytes, block->other_bytes); }
        clear_behind(address, requested_bytes(core, address), block->bytes);
    }
    return {static_cast<std::ptrdiff_t>(block->offset),
            write_handle({this_process(), std::move(block->pieces)})};
}

std::shared_ptr<void> open(Allocator& core, const std::string& handle) {
    int device = 0;
    C10_CUDA_CHECK(cudaGetDevice(&device));
    OpenMemory& all = open_memory();
    const OpenMemory::Key key{handle, device};
    const std::lock_guard guard(all.mutex);
    const auto known = all.pointers.find(key);
    if (known != all.pointers.end()) {
        if (std::shared_ptr<void> pointer = known->second.lock()) { return pointer; }
    }
    std::shared_ptr<void> pointer = open_anew(core, key);
    all.pointers[key] = pointer;
    return pointer;
}

}  // namespace gma::bridge
