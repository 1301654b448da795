#include "driver/cuda_driver_events.h"

namespace gma {

CudaEvents::CudaEvents(CudaContexts& contexts)
    : contexts_(contexts), idle_(static_cast<std::size_t>(contexts.device_count())) {}

CudaEvents::~CudaEvents() {
    for (const Entry& entry : entries_) {
        static_cast<void>(contexts_.api().cuEventDestroy(entry.event));
    }
}

Result<CudaEvents::Entry*> CudaEvents::take(int device) {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::vector<Entry*>& idle = idle_[static_cast<std::size_t>(device)];
    if (!idle.empty()) {
        Entry* entry = idle.back();
        idle.pop_back();
        return entry;
    }
    CUevent event = nullptr;
    const CUresult result = contexts_.api().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) {
        return cuda_failure(contexts_.api(), result,
                            "cuEventCreate(device " + std::to_string(device) + ")");
    }
    entries_.push_back({event, device});
    idle.reserve(entries_.size());  // so that give_back() never needs memory
    return &entries_.back();
}

void CudaEvents::give_back(Entry* entry) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    idle_[static_cast<std::size_t>(entry->device)].push_back(entry);
}

}  // namespace gma
