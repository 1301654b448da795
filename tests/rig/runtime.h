// What the runtime's files share: the thread's last error.
#pragma once

#include <cuda_runtime_api.h>

#include "rig.h"

#define RIG_COUNT()                                                                \
    if (const CUresult fault = rig::count_call(__func__); fault != CUDA_SUCCESS) { \
        return rig::remember(fault);                                               \
    }

namespace rig {

// The runtime's enum has the driver's numbers for all that the rig returns.
inline cudaError_t& last_error() {
    static thread_local cudaError_t error = cudaSuccess;
    return error;
}
inline cudaError_t remember(CUresult result) {
    const auto error = static_cast<cudaError_t>(result);
    if (error != cudaSuccess) { last_error() = error; }
    return error;
}
// What a call answers that needs the context.
inline cudaError_t remember_lost() {
    return remember(is_context_lost() ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS);
}
inline cudaError_t take_error() {
    const cudaError_t error = last_error();
    last_error() = cudaSuccess;
    return error;
}

}  // namespace rig
