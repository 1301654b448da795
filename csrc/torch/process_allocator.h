// The one allocator of the process, over the CUDA driver. It is made at its first use, since
// options may be set until then and since asking the driver earlier would start CUDA for programs
// that never use it. It is never destroyed: tensors are freed while the process ends, in any order.
//
// In a child that was forked afterwards its calls answer Code::Forked and frees are ignored (see
// core/fork_guard.h). A child whose parent had not made it may make its own.
#pragma once

#include "base/status.h"
#include "core/allocator.h"
#include "core/options.h"
#include "driver/driver.h"

namespace gma {

Result<Allocator*> process_allocator();
// Null before the first use. One atomic load.
Allocator* process_allocator_if_made() noexcept;
// The driver beneath; made with the allocator.
Result<Driver*> process_driver();

// Code::InvalidValue once the allocator is made.
Status configure_process_allocator(const Options& options);
// Those in force, or those it will be made with.
Options process_options();

}  // namespace gma
