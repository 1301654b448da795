// CUDA tensors between processes: what torch's shareIpcHandle() and getIpcDevPtr() do over the
// core.
//
// Mapped memory goes by file descriptors, chunk by chunk; memory of cudaMalloc by cudaIpcMemHandle,
// in PyTorch's own form, which a receiver without gpumem_alloc can open too. The sender keeps an
// exported block where it is until it is freed, which torch does when no receiver holds it.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <string>

#include "core/allocator.h"

namespace gma::bridge {

c10::cuda::CUDACachingAllocator::ShareableHandle share(Allocator& core, void* pointer);

// The memory on the current device, mapped; the same pointer while anybody holds it. When the last
// one lets go, the device is waited for and the memory unmapped; nothing is thrown then.
std::shared_ptr<void> open(Allocator& core, const std::string& handle);

// From now on share() refuses a block that lies on pages with others, whose bytes would go along,
// and clears what lies behind the block's own bytes.
void set_exclusive(bool exclusive);

}  // namespace gma::bridge
