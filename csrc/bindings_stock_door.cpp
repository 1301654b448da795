#include <pybind11/stl.h>

#include <cstdint>
#include <string>

#include "bindings.h"
#include "torch/door_errors.h"
#include "torch/raise_out_of_memory.h"
#include "torch/stock_door.h"

namespace py = pybind11;

namespace gma {
namespace {

template <class Function>
std::uintptr_t address_of(Function* function) {
    return reinterpret_cast<std::uintptr_t>(function);
}

// By the names of torch's setters, so that the table is the whole of the wiring.
py::dict hooks() {
    py::dict all;
    all["set_init_fn"] = address_of(&gma_init);
    all["set_reset_fn"] = address_of(&gma_reset);
    all["set_memory_fraction_fn"] = address_of(&gma_memory_fraction);
    all["set_base_alloc_fn"] = address_of(&gma_base_alloc);
    all["set_record_stream_fn"] = address_of(&gma_record_stream);
    all["set_begin_allocate_to_pool"] = address_of(&gma_begin_allocate_to_pool);
    all["set_end_allocate_to_pool_fn"] = address_of(&gma_end_allocate_to_pool);
    all["set_release_pool"] = address_of(&gma_release_pool);
    return all;
}

py::tuple take_errors() {
    const DoorErrors errors = take_door_errors();
    py::list kept;
    for (const DoorError& error : errors.kept) {
        kept.append(py::make_tuple(error.call, error.message));
    }
    return py::make_tuple(kept, errors.total_count);
}

}  // namespace

void bind_stock_door(py::module_& module) {
    module.def("stock_door_hooks", &hooks);
    module.def("take_door_errors", &take_errors);
    py::enum_<RaisePath>(module, "RaisePath")
        .value("Automatic", RaisePath::Automatic)
        .value("Constructor", RaisePath::Constructor)
        .value("BaseAndTable", RaisePath::BaseAndTable)
        .value("BadAlloc", RaisePath::BadAlloc);
    module.def("set_raise_path", &set_raise_path);
}

}  // namespace gma
