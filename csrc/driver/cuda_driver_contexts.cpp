#include "driver/cuda_driver_contexts.h"

#include <string>

namespace gma {

CudaContexts::CudaContexts(const CudaEntryPoints& api, int device_count)
    : api_(api), contexts_(static_cast<std::size_t>(device_count)) {}

// At the end of the process the driver may be gone already; then there is nothing to give back.
CudaContexts::~CudaContexts() {
    for (int device = 0; device < device_count(); ++device) {
        if (contexts_[static_cast<std::size_t>(device)].load() != nullptr) {
            static_cast<void>(api_.cuDevicePrimaryCtxRelease(device));
        }
    }
}

Result<CUcontext> CudaContexts::primary(int device) {
    if (device < 0 || device >= device_count()) {
        return Status(
            Code::DriverFailed,
            "device " + std::to_string(device) + " is not one of " + std::to_string(device_count()),
            static_cast<int>(CUDA_ERROR_INVALID_DEVICE));
    }
    std::atomic<CUcontext>& slot = contexts_[static_cast<std::size_t>(device)];
    if (CUcontext known = slot.load(std::memory_order_acquire); known != nullptr) { return known; }
    const std::lock_guard<std::mutex> guard(mutex_);
    CUcontext context = slot.load();
    if (context == nullptr) {
        const CUresult result = api_.cuDevicePrimaryCtxRetain(&context, device);
        if (result != CUDA_SUCCESS) {
            return cuda_failure(api_, result,
                                "cuDevicePrimaryCtxRetain(device " + std::to_string(device) + ")");
        }
        slot.store(context, std::memory_order_release);
    }
    return context;
}

CurrentContext::CurrentContext(CudaContexts& contexts, int device) : api_(contexts.api()) {
    Result<CUcontext> wanted = contexts.primary(device);
    if (!wanted) {
        status_ = wanted.status();
        return;
    }
    if (const CUresult result = api_.cuCtxGetCurrent(&previous_); result != CUDA_SUCCESS) {
        status_ = cuda_failure(api_, result, "cuCtxGetCurrent");
        return;
    }
    if (previous_ == *wanted) { return; }
    if (const CUresult result = api_.cuCtxSetCurrent(*wanted); result != CUDA_SUCCESS) {
        status_ =
            cuda_failure(api_, result, "cuCtxSetCurrent(device " + std::to_string(device) + ")");
        return;
    }
    is_changed_ = true;
}

CurrentContext::~CurrentContext() {
    if (is_changed_) { static_cast<void>(api_.cuCtxSetCurrent(previous_)); }
}

RelaxedCapture::RelaxedCapture(const CudaEntryPoints& api) : api_(api) {
    static_cast<void>(api_.cuThreadExchangeStreamCaptureMode(&mode_));
}

// The exchange put the thread's own mode into mode_.
RelaxedCapture::~RelaxedCapture() {
    static_cast<void>(api_.cuThreadExchangeStreamCaptureMode(&mode_));
}

}  // namespace gma
