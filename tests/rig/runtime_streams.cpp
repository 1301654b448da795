// The runtime's streams, events, graphs and kernels. Kernels of the runtime do nothing; a graph is
// an empty thing that can be made and launched.
#include "rig.h"

#include <utility>

#include "runtime.h"

namespace {

template <class T>
std::uintptr_t number(T* handle) {
    return reinterpret_cast<std::uintptr_t>(handle);
}

cudaError_t make_stream(cudaStream_t* stream) {
    *stream = reinterpret_cast<cudaStream_t>(rig::create_stream());
    return cudaSuccess;
}
cudaError_t make_event(cudaEvent_t* event) {
    *event = reinterpret_cast<cudaEvent_t>(rig::create_event());
    return cudaSuccess;
}
template <class T>
T opaque_handle() {
    static int thing = 0;
    return reinterpret_cast<T>(&thing);
}

cudaStreamCaptureStatus status_of(cudaStream_t stream) {
    switch (rig::capture(number(stream))) {
        case rig::Capture::None:
            return cudaStreamCaptureStatusNone;
        case rig::Capture::Active:
            return cudaStreamCaptureStatusActive;
        case rig::Capture::Invalid:
            return cudaStreamCaptureStatusInvalidated;
    }
    return cudaStreamCaptureStatusNone;
}

}  // namespace

// --- streams ------------------------------------------------------------------------------------
RIG_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make_stream(stream); }
RIG_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    return make_stream(stream);
}
RIG_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    return make_stream(stream);
}
RIG_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    rig::destroy_stream(number(stream));
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
    *priority = 0;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
    if (rig::is_context_lost()) { return rig::remember_lost(); }
    return rig::idle(number(stream)) ? cudaSuccess : cudaErrorNotReady;
}
RIG_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    rig::finish(number(stream));
    return rig::remember_lost();
}
RIG_EXPORT cudaError_t cudaDeviceSynchronize() {
    RIG_COUNT();
    rig::finish_all();
    return rig::remember_lost();
}
RIG_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    rig::stream_waits(number(stream), number(event));
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
    function(data);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function,
                                             void* data, unsigned) {
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}

// --- events -----------------------------------------------------------------------------------
RIG_EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return make_event(event); }
RIG_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return make_event(event);
}
RIG_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    rig::destroy_event(number(event));
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    rig::record(number(event), number(stream));
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return cudaEventRecord(event, stream);
}
RIG_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (rig::is_context_lost()) { return rig::remember_lost(); }
    return rig::passed(number(event)) ? cudaSuccess : cudaErrorNotReady;
}
RIG_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    rig::host_waits(number(event));
    return rig::remember_lost();
}
RIG_EXPORT cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
    *ms = 1.0F;
    return cudaSuccess;
}

// --- capture and graphs -----------------------------------------------------------------------
RIG_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    rig::set_capturing(number(stream), true);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    const bool is_invalid = rig::capture(number(stream)) == rig::Capture::Invalid;
    rig::set_capturing(number(stream), false);
    *graph = is_invalid ? nullptr : opaque_handle<cudaGraph_t>();
    return is_invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
RIG_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    *status = status_of(stream);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                cudaStreamCaptureStatus* status,
                                                unsigned long long* id, cudaGraph_t* graph,
                                                const cudaGraphNode_t** nodes,
                                                const cudaGraphEdgeData** edges,
                                                std::size_t* count) {
    *status = status_of(stream);
    if (id != nullptr) { *id = *status == cudaStreamCaptureStatusActive ? 1 : 0; }
    if (graph != nullptr) { *graph = opaque_handle<cudaGraph_t>(); }
    if (nodes != nullptr) { *nodes = nullptr; }
    if (edges != nullptr) { *edges = nullptr; }
    if (count != nullptr) { *count = 0; }
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    static thread_local cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    std::swap(*mode, current);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t,
                                                     unsigned long long) {
    *exec = opaque_handle<cudaGraphExec_t>();
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
RIG_EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
RIG_EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
RIG_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, std::size_t* count) {
    *count = 1;  // PyTorch warns about an empty graph
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned,
                                            unsigned) {
    *object = opaque_handle<cudaUserObject_t>();
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
RIG_EXPORT cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned,
                                                 unsigned) {
    return cudaSuccess;
}

// --- kernels ------------------------------------------------------------------------------------
RIG_EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t,
                                        cudaStream_t) {
    return rig::remember_lost();
}
RIG_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
    return rig::remember_lost();
}
RIG_EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
    *attributes = {};
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = attributes->ptxVersion = 90;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaMemcpyToSymbol(const void*, const void*, std::size_t, std::size_t,
                                          cudaMemcpyKind) {
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                              const void*, int,
                                                                              std::size_t,
                                                                              unsigned) {
    *blocks = 2;
    return cudaSuccess;
}

// nvcc's own registration calls, made by the static initialisers of PyTorch's libraries.
RIG_EXPORT void** __cudaRegisterFatBinary(void*) {
    static void* image = nullptr;
    return &image;
}
RIG_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
RIG_EXPORT void __cudaUnregisterFatBinary(void**) {}
RIG_EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*,
                                       void*, void*, int*) {}
RIG_EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
RIG_EXPORT char __cudaInitModule(void**) { return 1; }
RIG_EXPORT unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, CUstream_st*) { return 0; }
RIG_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared,
                                                  void* stream) {
    *grid = *block = dim3(1, 1, 1);
    *shared = 0;
    *static_cast<cudaStream_t*>(stream) = nullptr;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) {
    *kernel = opaque_handle<cudaKernel_t>();
    return cudaSuccess;
}
RIG_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t,
                                          cudaStream_t) {
    return cudaSuccess;
}
