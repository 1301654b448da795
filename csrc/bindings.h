// The parts of the Python module. No logic: each function translates, calls and maps the Status.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "base/status.h"

namespace gma {

void bind_options(pybind11::module_& module);     // the table, parsing, what is in force
void bind_allocator(pybind11::module_& module);   // the process's allocator
void bind_isolation(pybind11::module_& module);   // its no-sharing mode
void bind_events(pybind11::module_& module);      // its event ring
void bind_stock_door(pybind11::module_& module);  // addresses for torch, and errors it kept
void bind_bridge(pybind11::module_& module);      // what the bridge gets of the core
void bind_replay(pybind11::module_& module);      // traces, replay and the microbenchmark
void bind_attacks(pybind11::module_& module);     // accesses on purpose, the driver on the CPU
void bind_machines(pybind11::module_& module);    // machines on the CPU, to be attacked

// Raises gpumem_alloc._C.StatusError(code, message); Python gives it its own type.
void check(const Status& status);

template <class T>
T value_of(Result<T> result) {
    check(result.status());
    return std::move(*result);
}

}  // namespace gma
