// The Python module: translation only, no logic.
#include <pybind11/pybind11.h>

#include "base/version.h"

PYBIND11_MODULE(_C, module) {
    module.attr("__version__") = gma::version();
    module.attr("git_id") = gma::git_id();
}
