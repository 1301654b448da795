// The driver functions that we call, found in libcuda.so.1 at run time. One list is the source.
#pragma once

#include <cuda.h>

#include <string>

#include "base/status.h"
#include "base/units.h"

namespace gma {

// X(name, version): the version of CUDA in which this form of the function appeared. Asking for
// exactly that one keeps the signature of the cuda.h that we are compiled with, on newer drivers
// too.
#define GMA_CUDA_ENTRY_POINTS(X)             \
    X(cuInit, 2000)                          \
    X(cuGetErrorName, 6000)                  \
    X(cuDeviceGetCount, 2000)                \
    X(cuDeviceGetAttribute, 2000)            \
    X(cuDeviceTotalMem, 3020)                \
    X(cuDeviceCanAccessPeer, 4000)           \
    X(cuDevicePrimaryCtxRetain, 7000)        \
    X(cuDevicePrimaryCtxRelease, 11000)      \
    X(cuCtxGetCurrent, 4000)                 \
    X(cuCtxSetCurrent, 4000)                 \
    X(cuCtxGetDevice, 2000)                  \
    X(cuCtxSynchronize, 2000)                \
    X(cuMemGetInfo, 3020)                    \
    X(cuMemAlloc, 3020)                      \
    X(cuMemFree, 3020)                       \
    X(cuMemHostAlloc, 2020)                  \
    X(cuMemFreeHost, 2000)                   \
    X(cuMemcpyDtoHAsync, 3020)               \
    X(cuMemsetD8Async, 3020)                 \
    X(cuMemsetD32Async, 3020)                \
    X(cuMemGetAllocationGranularity, 10020)  \
    X(cuMemAddressReserve, 10020)            \
    X(cuMemAddressFree, 10020)               \
    X(cuMemCreate, 10020)                    \
    X(cuMemRelease, 10020)                   \
    X(cuMemMap, 10020)                       \
    X(cuMemUnmap, 10020)                     \
    X(cuMemSetAccess, 10020)                 \
    X(cuMemExportToShareableHandle, 10020)   \
    X(cuMemImportFromShareableHandle, 10020) \
    X(cuModuleLoadData, 2000)                \
    X(cuModuleUnload, 2000)                  \
    X(cuModuleGetFunction, 2000)             \
    X(cuLaunchKernel, 4000)                  \
    X(cuEventCreate, 2000)                   \
    X(cuEventDestroy, 4000)                  \
    X(cuEventRecord, 2000)                   \
    X(cuEventQuery, 2000)                    \
    X(cuEventSynchronize, 2000)              \
    X(cuStreamWaitEvent, 3020)               \
    X(cuStreamGetCtx, 9020)                  \
    X(cuStreamGetId, 12000)                  \
    X(cuStreamIsCapturing, 10000)            \
    X(cuThreadExchangeStreamCaptureMode, 10010)

// cuda.h renames some functions by macro (cuMemAlloc is cuMemAlloc_v2); members follow, and so do
// the callers, which write the plain name.
struct CudaEntryPoints {
#define GMA_MEMBER(name, version) decltype(&::name) name = nullptr;
    GMA_CUDA_ENTRY_POINTS(GMA_MEMBER)
#undef GMA_MEMBER
};

// All or nothing: a driver that lacks one of them is older than CUDA 12.0. The library is never
// closed again.
Result<CudaEntryPoints> load_cuda_entry_points();

// "cuMemCreate(64.00 MiB, device 0)"
std::string call_text(const char* name, Bytes bytes, int device);

// For good, with this device or system.
inline bool is_refused(CUresult result) {
    return result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_SUPPORTED;
}

// "<call> failed: CUDA_ERROR_OUT_OF_MEMORY (2)". Works while the process ends, when the driver
// answers nothing but that it is gone.
Status cuda_failure(const CudaEntryPoints& api, CUresult result, const std::string& call);

}  // namespace gma
