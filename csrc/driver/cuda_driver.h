// The Driver on NVIDIA cards. Free of cuda.h, so that anybody may ask for it.
#pragma once

#include <memory>

#include "base/status.h"
#include "driver/driver.h"

namespace gma {

// Finds libcuda.so.1 at run time and starts it (cuInit); nothing is linked. No context is made
// until a device is used. Without a driver or a card: Code::NotSupported and the reason.
//
// As with any use of CUDA, a process forked afterwards cannot use the cards.
Result<std::unique_ptr<Driver>> make_cuda_driver();

}  // namespace gma
