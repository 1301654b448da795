#include "bindings.h"
#include "torch/bridge/core_access.h"
#include "torch/door_errors.h"
#include "torch/process_allocator.h"

namespace py = pybind11;

namespace gma {

void bind_bridge(py::module_& module) {
    module.def("core_access", [] {
        static const CoreAccess kAccess{kCoreLayout, &process_allocator, &note_door_error};
        return py::capsule(&kAccess, kCoreAccessName);
    });
}

}  // namespace gma
