#include "bindings.h"

#include "base/version.h"
#include "kernels/images.h"

namespace py = pybind11;

namespace gma {
namespace {

PyObject* status_error = nullptr;  // lives as long as the interpreter

const char* name_of(Code code) {
    switch (code) {
        case Code::Ok:
            return "ok";
        case Code::OutOfMemory:
            return "out_of_memory";
        case Code::InvalidValue:
            return "invalid_value";
        case Code::NotSupported:
            return "not_supported";
        case Code::DriverFailed:
            return "driver_failed";
        case Code::Forked:
            return "forked";
    }
    return "unknown";
}

}  // namespace

void check(const Status& status) {
    if (status.ok()) { return; }
    const py::tuple arguments = py::make_tuple(name_of(status.code()), status.message());
    PyErr_SetObject(status_error, arguments.ptr());
    throw py::error_already_set();
}

}  // namespace gma

PYBIND11_MODULE(_C, module) {
    module.doc() = "The compiled part of gpumem_alloc.";
    module.attr("__version__") = gma::version();
    module.attr("git_id") = gma::git_id();
    gma::status_error =
        PyErr_NewException("gpumem_alloc._C.StatusError", PyExc_RuntimeError, nullptr);
    module.attr("StatusError") = py::reinterpret_borrow<py::object>(gma::status_error);
    module.def("has_cuda_kernels", &gma::has_cuda_kernels);
    gma::bind_options(module);
    gma::bind_allocator(module);
    gma::bind_isolation(module);
    gma::bind_events(module);
    gma::bind_stock_door(module);
    gma::bind_bridge(module);
    gma::bind_replay(module);
    gma::bind_attacks(module);
    gma::bind_machines(module);
}
