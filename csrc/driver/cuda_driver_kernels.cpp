#include "driver/cuda_driver_kernels.h"

namespace gma {

CudaKernels::CudaKernels(CudaContexts& contexts, KernelImage image,
                         const std::array<const char*, kMostKernels>& names)
    : contexts_(contexts),
      image_(image),
      names_(names),
      loaded_(static_cast<std::size_t>(contexts.device_count())) {}

CudaKernels::~CudaKernels() {
    for (int device = 0; device < contexts_.device_count(); ++device) {
        CUmodule const module = loaded_[static_cast<std::size_t>(device)].module;
        if (module == nullptr) { continue; }
        const CurrentContext context(contexts_, device);
        if (context.status().ok()) { static_cast<void>(contexts_.api().cuModuleUnload(module)); }
    }
}

const std::array<CUfunction, kMostKernels>* CudaKernels::of(int device) {
    if (image_.bytes == 0) { return nullptr; }
    Loaded& loaded = loaded_[static_cast<std::size_t>(device)];
    State state = loaded.state.load(std::memory_order_acquire);
    if (state == State::Unknown) {
        const std::lock_guard<std::mutex> guard(mutex_);
        state = loaded.state.load();
        if (state == State::Unknown) {
            state = load_locked(loaded);
            loaded.state.store(state, std::memory_order_release);
        }
    }
    return state == State::Ready ? &loaded.functions : nullptr;
}

std::string CudaKernels::lack(int device) {
    if (image_.bytes == 0) { return "this build has no CUDA kernels"; }
    Loaded& loaded = loaded_[static_cast<std::size_t>(device)];
    if (loaded.state.load(std::memory_order_acquire) != State::Lacking) { return {}; }
    return "the CUDA kernels cannot be used: " + loaded.why;
}

// A card newer than all that the image names compiles its PTX here; an older one has nothing in it.
CudaKernels::State CudaKernels::load_locked(Loaded& loaded) {
    const CudaEntryPoints& api = contexts_.api();
    const RelaxedCapture relaxed(api);
    CUresult result = api.cuModuleLoadData(&loaded.module, image_.data);
    if (result != CUDA_SUCCESS) {
        loaded.module = nullptr;
        loaded.why = cuda_failure(api, result, "cuModuleLoadData").message();
        return State::Lacking;
    }
    for (std::size_t i = 0; i < kMostKernels && names_[i] != nullptr; ++i) {
        result = api.cuModuleGetFunction(&loaded.functions[i], loaded.module, names_[i]);
        if (result != CUDA_SUCCESS) {
            const std::string call = "cuModuleGetFunction(" + std::string(names_[i]) + ")";
            loaded.why = cuda_failure(api, result, call).message();
            return State::Lacking;
        }
    }
    return State::Ready;
}

CUresult launch_kernel(const CudaEntryPoints& api, CUfunction function, unsigned block_count,
                       unsigned thread_count, CUstream stream, void* arguments) {
    void* parameters[] = {arguments};
    return api.cuLaunchKernel(function, block_count, 1, 1, thread_count, 1, 1, 0, stream,
                              parameters, nullptr);
}

}  // namespace gma
