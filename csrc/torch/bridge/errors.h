// From the core's statuses to torch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include "base/status.h"

namespace gma::bridge {

[[noreturn]] inline void raise(const Status& status) {
    if (status.code() == Code::OutOfMemory) {
        TORCH_CHECK_WITH(OutOfMemoryError, false, status.message());
    }
    TORCH_CHECK(false, "gpumem_alloc: ", status.message());
}

inline void check(const Status& status) {
    if (!status.ok()) { raise(status); }
}

template <class T>
T value_of(Result<T> result) {
    if (!result) { raise(result.status()); }
    return std::move(*result);
}

}  // namespace gma::bridge
