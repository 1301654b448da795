// What gpumem_alloc/sharing.py asks of the module.
#pragma once

#include <pybind11/pybind11.h>

namespace gma::bridge {

void define_sharing(pybind11::module_& module);

}  // namespace gma::bridge
