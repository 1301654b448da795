// The kernels that are built into the module, on each device that uses them.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <string>

#include "base/status.h"
#include "driver/cuda_driver_contexts.h"
#include "kernels/images.h"

namespace gma {

inline constexpr std::size_t kMostKernels = 4;  // of one image

// One image. It is loaded into a device's context when the device first asks, and once only: what
// failed is not tried again.
class CudaKernels {
public:
    CudaKernels(CudaContexts& contexts, KernelImage image,
                const std::array<const char*, kMostKernels>& names);
    ~CudaKernels();
    CudaKernels(const CudaKernels&) = delete;
    CudaKernels& operator=(const CudaKernels&) = delete;

    // In the order of the names; nullptr if they are not to be had. The device's context must be
    // current.
    const std::array<CUfunction, kMostKernels>* of(int device);
    // Why they are not, as far as is known: nothing is loaded for the answer. "" if they may be.
    std::string lack(int device);

private:
    enum class State : unsigned char { Unknown, Ready, Lacking };
    struct Loaded {
        std::atomic<State> state{State::Unknown};
        CUmodule module = nullptr;
        std::array<CUfunction, kMostKernels> functions{};
        std::string why;
    };

    State load_locked(Loaded& loaded);

    CudaContexts& contexts_;
    const KernelImage image_;
    const std::array<const char*, kMostKernels> names_;
    std::mutex mutex_;  // held while a module is loaded
    std::deque<Loaded> loaded_;
};

// One block row of threads; `arguments` is the kernel's one parameter.
CUresult launch_kernel(const CudaEntryPoints& api, CUfunction function, unsigned block_count,
                       unsigned thread_count, CUstream stream, void* arguments);

}  // namespace gma
