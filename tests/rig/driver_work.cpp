// libcuda.so.1: what puts work into streams (kernels, copies, memsets), and pinned memory for it.
#include <cstdlib>
#include <set>
#include <string>

#include "driver_face.h"

namespace {

// What a function handle stands for; never given back.
CUfunction function_of(const char* name) {
    static std::set<std::string>* const kNames = new std::set<std::string>();
    const auto known = kNames->insert(name).first;
    return reinterpret_cast<CUfunction>(const_cast<char*>(known->c_str()));
}

// Work for a stream that captures would become a part of its graph, which the rig has not.
CUresult queue(CUstream stream, std::function<void()> work) {
    const CUresult forbidden =
        rig::forbid_in_capture(number(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (forbidden == CUDA_SUCCESS) { rig::enqueue(number(stream), std::move(work)); }
    return forbidden;
}

CUresult set_words(CUdeviceptr to, unsigned value, std::size_t word_bytes, std::size_t count,
                   CUstream stream) {
    if (to % word_bytes != 0) { return CUDA_ERROR_INVALID_VALUE; }
    const int device = rig::current_device();
    return queue(stream, [=] { rig::set_words(device, to, value, word_bytes, count); });
}

}  // namespace

RIG_EXPORT CUresult cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned) {
    RIG_COUNT();
    *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *pointer != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
RIG_EXPORT CUresult cuMemFreeHost(void* pointer) {
    std::free(pointer);  // a lost context has no more use for it
    RIG_COUNT();
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes,
                                      CUstream stream) {
    RIG_COUNT();
    const int device = rig::current_device();
    const void* source = reinterpret_cast<const void*>(from);
    return queue(stream, [=] { rig::copy(device, to, source, bytes); });
}
RIG_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count,
                                    CUstream stream) {
    RIG_COUNT();
    return set_words(to, value, 1, count, stream);
}
RIG_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count,
                                     CUstream stream) {
    RIG_COUNT();
    return set_words(to, value, 4, count, stream);
}
RIG_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    RIG_COUNT();
    *module = reinterpret_cast<CUmodule>(const_cast<void*>(image));
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuModuleUnload(CUmodule) {
    RIG_COUNT();
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
    RIG_COUNT();
    *function = function_of(name);
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned,
                                   unsigned, unsigned, unsigned, CUstream stream, void** parameters,
                                   void**) {
    RIG_COUNT();
    const char* name = reinterpret_cast<const char*>(function);
    return queue(stream, rig::kernel_work(name, rig::current_device(), parameters));
}
