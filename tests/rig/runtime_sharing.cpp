// The runtime between processes: memory of cudaMalloc, and events. Mapped memory has no such
// handle, as on a card.
#include <cuda_runtime_api.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "runtime.h"

namespace {

struct Shared {
    int process;
    int descriptor;
};
static_assert(sizeof(Shared) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

RIG_EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
    RIG_COUNT();
    Shared shared{getpid(), -1};
    const CUresult result =
        rig::export_allocation(reinterpret_cast<CUdeviceptr>(pointer), &shared.descriptor);
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle, &shared, sizeof shared);
    return rig::remember(result);
}
RIG_EXPORT cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned) {
    RIG_COUNT();
    Shared shared{};
    std::memcpy(&shared, &handle, sizeof shared);
    const auto process = static_cast<int>(syscall(SYS_pidfd_open, shared.process, 0));
    const auto descriptor =
        static_cast<int>(syscall(SYS_pidfd_getfd, process, shared.descriptor, 0));
    CUdeviceptr address = 0;
    const CUresult result =
        descriptor < 0 ? CUDA_ERROR_INVALID_HANDLE
                       : rig::import_allocation(rig::current_device(), descriptor, &address);
    close(descriptor);
    close(process);
    *pointer = reinterpret_cast<void*>(address);
    return rig::remember(result);
}
RIG_EXPORT cudaError_t cudaIpcCloseMemHandle(void* pointer) {
    RIG_COUNT();
    rig::finish_all();
    return rig::remember(rig::close_import(reinterpret_cast<CUdeviceptr>(pointer)));
}

// What another process has queued is done: its streams are not slow.
RIG_EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t) {
    RIG_COUNT();
    std::memset(handle, 1, sizeof *handle);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t) {
    RIG_COUNT();
    *event = reinterpret_cast<cudaEvent_t>(rig::create_event());
    return cudaSuccess;
}
