// The compiled kernels as they are built into the module: fat binaries that the CUDA driver loads.
// Empty where no nvcc was found (cmake/CudaKernels.cmake); whoever uses them can do without.
#pragma once

#include <cstddef>

namespace gma {

struct KernelImage {
    const unsigned char* data = nullptr;
    std::size_t bytes = 0;
};

KernelImage pattern_image();
KernelImage attack_image();

// That nvcc made them.
inline bool has_cuda_kernels() { return pattern_image().bytes > 0 && attack_image().bytes > 0; }

}  // namespace gma
