#include "torch/bridge/ipc_module.h"

#include <pybind11/stl.h>

#include <vector>

#include "torch/bridge/ipc.h"
#include "torch/bridge/ipc_descriptors.h"
#include "torch/bridge/ipc_handle.h"

namespace gma::bridge {
namespace {

namespace py = pybind11;

// The sender's descriptors behind a handle of ours; empty for other handles.
std::vector<int> descriptors_of(const std::string& handle) {
    std::vector<int> numbers;
    if (const auto memory = read_handle(handle)) {
        for (const ExportedPiece& piece : memory->pieces) { numbers.push_back(piece.descriptor); }
    }
    return numbers;
}

void bring_numbers(const std::string& handle, const std::vector<int>& numbers) {
    std::vector<Descriptor> owned;
    owned.reserve(numbers.size());
    for (const int number : numbers) { owned.emplace_back(number); }
    bring(handle, std::move(owned));
}

}  // namespace

void define_sharing(py::module_& module) {
    module.def("shared_descriptors",
               [](const py::bytes& handle) { return descriptors_of(handle); });
    module.def("bring_descriptors", [](const py::bytes& handle, const std::vector<int>& numbers) {
        bring_numbers(handle, numbers);
    });
    module.def("withdraw_descriptors", [](const py::bytes& handle) { withdraw(handle); });
    module.def("descriptors_can_be_fetched", &can_be_fetched);
    module.def("set_share_exclusively", &set_exclusive);
}

}  // namespace gma::bridge
