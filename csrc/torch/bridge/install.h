// Puts the bridge in PyTorch's place.
#pragma once

#include <memory>
#include <string>

#include "torch/bridge/bridge_allocator.h"

namespace gma::bridge {

// Makes the one object; once a process. Throws c10::Error if `access` is of another version.
void attach(const CoreAccess& access);
std::shared_ptr<cca::CUDAAllocator> allocator();

// The name of the current allocator where it is neither ours nor one of PyTorch's own; else "".
// What such a one has served only it can free, and it need not answer of pools and graphs.
std::string foreign_name();

enum class Moment { Early, Late };  // before CUDA was used, or after
// Makes it the current allocator of torch.cuda and torch.accelerator. Throws c10::Error, and leaves
// all as it was, where that cannot be done safely.
Moment install();
bool is_installed() noexcept;

}  // namespace gma::bridge
