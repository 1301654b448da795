// The one allocator of the process, over the CUDA driver. It is made at its first use, since
// options may be set until then and since asking the driver earlier would start CUDA for programs
// that never use it. It is never destroyed: tensors are freed while the process ends, in any order.
//
// In a child that was forked afterwards its calls answer Code::Forked and frees are ignored (see
// core/fork_guard.h). A child whose parent had not made it may make its own.
#pragma once

#include <atomic>
#include <memory>

#include "base/status.h"
#include "core/allocator.h"
#include "core/options.h"
#include "driver/driver.h"

namespace gma {

namespace detail {
extern std::atomic<Allocator*> made_allocator;  // written once; constant-initialised, so no guard
}

Result<Allocator*> process_allocator();
// Null before the first use. One load: it is on the path of every allocation and free.
inline Allocator* process_allocator_if_made() noexcept {
    return detail::made_allocator.load(std::memory_order_acquire);
}
// The driver beneath; made with the allocator.
Result<Driver*> process_driver();

// Makes the allocator over this driver instead, for a measurement of the entry points in a process
// of its own. Code::InvalidValue once the allocator is made.
Status use_driver_for_measurement(std::unique_ptr<Driver> driver, const Options& options);

// Code::InvalidValue once the allocator is made.
Status configure_process_allocator(const Options& options);
// Those in force, or those it will be made with.
Options process_options();

}  // namespace gma
