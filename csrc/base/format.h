// Sizes as people read them, in PyTorch's style, so that our texts can stand beside its own.
#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

namespace gma {

// "512 bytes", "1.50 KiB", "64.00 MiB", "79.15 GiB": two decimals, units of 1024, bytes whole.
std::string bytes_text(Bytes bytes);
// "0x7f1234567000".
std::string hex_text(std::uint64_t value);

}  // namespace gma
