// How the bridge reaches the process's one allocator. The module `_C` hands this table over; the
// bridge is compiled from headers of the same version, which `layout` makes sure of.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/allocator.h"

namespace gma {

// Raise it with every change to allocator.h or to this table.
inline constexpr std::uint32_t kCoreLayout = 6;
inline constexpr const char* kCoreAccessName = "gpumem_alloc.core_access";

struct CoreAccess {
    std::uint32_t layout;
    Result<Allocator*> (*allocator)();  // makes it at the first call
    void (*note_error)(const char* call,
                       const Status& status) noexcept;  // of calls that may not throw
};

}  // namespace gma
