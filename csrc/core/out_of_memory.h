// The texts of out of memory: PyTorch's first sentences, so that every tool that looks for them
// finds them, then our numbers and the cause. A setting that is on already is never advised.
#pragma once

#include <string>

#include "core/allocator.h"

namespace gma {

std::string out_of_memory_text(const OutOfMemoryReport& report);

}  // namespace gma
