// The one allocator of the process, over the CUDA driver. It is made at its first use, since options
// may be set until then and since asking the driver earlier would start CUDA for programs that
// never use it. It is never destroyed: tensors are freed while the process ends, in any order.
//
// After a fork the child's copy of the driver is dead: there every call answers Code::Forked, and
// process_allocator_if_made() is null, so that frees are ignored. A child whose parent had not made
// the allocator may make its own.
#pragma once

#include "base/status.h"
#include "core/allocator.h"
#include "core/options.h"
#include "driver/driver.h"

namespace gma {

Result<Allocator*> process_allocator();
// Null before the first use and in a forked child. One atomic load.
Allocator* process_allocator_if_made() noexcept;
// The driver beneath; made with the allocator.
Result<Driver*> process_driver();

// Code::InvalidValue once the allocator is made.
Status configure_process_allocator(const Options& options);
// Those in force, or those it will be made with.
Options process_options();

}  // namespace gma
