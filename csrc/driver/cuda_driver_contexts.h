// Which context a call runs in. We use each device's primary context, as PyTorch and the runtime
// do, make it only when the device is first used, and leave the thread as we found it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <deque>
#include <mutex>

#include "base/status.h"
#include "driver/cuda_driver_entry_points.h"

namespace gma {

// Owner of one reference to the primary context of each device that was used.
class CudaContexts {
public:
    CudaContexts(const CudaEntryPoints& api, int device_count);
    ~CudaContexts();
    CudaContexts(const CudaContexts&) = delete;
    CudaContexts& operator=(const CudaContexts&) = delete;

    const CudaEntryPoints& api() const { return api_; }
    int device_count() const { return static_cast<int>(contexts_.size()); }
    Result<CUcontext> primary(int device);

private:
    const CudaEntryPoints& api_;
    std::mutex mutex_;                             // held while one is made
    std::deque<std::atomic<CUcontext>> contexts_;  // nullptr: not used yet
};

// For its lifetime the device's primary context is this thread's current one.
class CurrentContext {
public:
    CurrentContext(CudaContexts& contexts, int device);
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

    const Status& status() const { return status_; }

private:
    const CudaEntryPoints& api_;
    Status status_;
    CUcontext previous_ = nullptr;
    bool is_changed_ = false;
};

// For its lifetime this thread may make calls that a graph capture elsewhere in the process would
// forbid (and be broken by). What we call under it puts nothing into any stream.
class RelaxedCapture {
public:
    explicit RelaxedCapture(const CudaEntryPoints& api);
    ~RelaxedCapture();
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

private:
    const CudaEntryPoints& api_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace gma
