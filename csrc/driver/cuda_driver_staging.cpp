#include "driver/cuda_driver_staging.h"

#include <algorithm>
#include <cstring>

namespace gma {

CudaStaging::CudaStaging(CudaContexts& contexts, CudaEvents& events, Contents contents)
    : contexts_(contexts), events_(events), contents_(contents) {}

// At the end of the process the driver may be gone, and the memory with it.
CudaStaging::~CudaStaging() {
    for (const Slab& slab : slabs_) {
        const CurrentContext context(contexts_, slab.device);
        if (context.status().ok()) { static_cast<void>(contexts_.api().cuMemFreeHost(slab.data)); }
    }
}

Result<CudaStaging::Block> CudaStaging::take(int device, Bytes bytes) {
    std::size_t size_index = 0;
    while (size_index < kSizeCount && kSmallestBytes << size_index < bytes) { ++size_index; }
    if (size_index == kSizeCount) {
        return Status(Code::DriverFailed,
                      call_text("cuMemHostAlloc", bytes, device) + " failed: too much",
                      static_cast<int>(CUDA_ERROR_INVALID_VALUE));
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Block>& free = free_[size_index];
    if (free.empty()) { collect_locked(); }
    if (free.empty()) {
        if (Status status = add_locked(device, size_index); !status.ok()) { return status; }
    }
    const Block block = free.back();
    free.pop_back();
    return block;
}

void CudaStaging::give_back(Block block) {
    const std::lock_guard<std::mutex> guard(mutex_);
    free_[block.size_index].push_back(block);
}

void CudaStaging::give_back_after(Block block, CudaEvents::Entry* entry) {
    const std::lock_guard<std::mutex> guard(mutex_);
    in_use_.push_back({block, entry});
}

// An event that cannot be asked stays: what it guards may still be in use.
void CudaStaging::collect_locked() {
    const RelaxedCapture relaxed(contexts_.api());
    std::erase_if(in_use_, [this](const InUse& use) {
        if (contexts_.api().cuEventQuery(use.entry->event) != CUDA_SUCCESS) { return false; }
        free_[use.block.size_index].push_back(use.block);
        events_.give_back(use.entry);
        return true;
    });
}

Status CudaStaging::add_locked(int device, std::size_t size_index) {
    const Bytes block_bytes = kSmallestBytes << size_index;
    const Bytes slab_bytes = std::max(kSlabBytes, block_bytes);
    const RelaxedCapture relaxed(contexts_.api());
    void* slab = nullptr;
    const CUresult result = contexts_.api().cuMemHostAlloc(
        &slab, slab_bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (result != CUDA_SUCCESS) {
        return cuda_failure(contexts_.api(), result,
                            call_text("cuMemHostAlloc", slab_bytes, device));
    }
    slabs_.push_back({device, slab});
    if (contents_ == Contents::Zero) { std::memset(slab, 0, slab_bytes); }
    for (Bytes offset = slab_bytes; offset > 0; offset -= block_bytes) {
        free_[size_index].push_back(
            {static_cast<unsigned char*>(slab) + (offset - block_bytes), size_index});
    }
    return Status();
}

}  // namespace gma
