// Contexts of history that are handed out again where the call stack is the same: gathering one
// costs more than comparing the Python frames with those of one that is there.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <memory>

namespace gma::bridge {

// What `gather` returns here and now, or an older context that says the same. May take Python's
// lock, as torch's own functions do: hold none of ours.
std::shared_ptr<c10::GatheredContext> gather_or_reuse(
    c10::CachingDeviceAllocator::CreateContextFn gather);

// Lets go of the contexts that are kept: at once where the caller has Python's lock, else when one
// is next asked for.
void forget_contexts();

}  // namespace gma::bridge
