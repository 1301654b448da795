// The Python module `_bridge`: one per torch version, loaded by gpumem_alloc.bridge.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "torch/bridge/install.h"
#include "torch/bridge/ipc_module.h"
#include "torch/bridge/settings.h"
#include "torch/bridge/torch_version.h"

#ifndef GMA_BRIDGE_SOURCE_ID
#define GMA_BRIDGE_SOURCE_ID ""
#endif

namespace py = pybind11;
using namespace gma::bridge;

PYBIND11_MODULE(_bridge, module) {
    module.attr("TORCH_VERSION") = TORCH_VERSION;
    module.attr("SOURCE_ID") = GMA_BRIDGE_SOURCE_ID;
    module.def("attach",
               [](const py::capsule& core) { attach(*core.get_pointer<gma::CoreAccess>()); });
    module.def("allocator", &allocator);
    module.def("install", [] { return install() == Moment::Late ? "late" : "early"; });
    module.def("is_installed", &is_installed);
    module.def("foreign_name", &foreign_name);
    module.def("idle_settings", [](const std::string& text, const std::string& strategy) {
        return idle_settings(text, strategy);
    });
    define_sharing(module);
}
