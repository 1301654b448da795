// From the core's statuses to torch's exceptions.
#pragma once

#include <c10/util/Exception.h>

#include "base/status.h"

namespace gma::bridge {

[[noreturn]] inline void raise(const Status& status) {
    if (status.code() == Code::OutOfMemory) {
        TORCH_CHECK_WITH(OutOfMemoryError, false, status.message());
    }
    const bool named = status.message().rfind("gpumem_alloc: ", 0) == 0;  // a violation's text is
    TORCH_CHECK(false, named ? "" : "gpumem_alloc: ", status.message());
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
