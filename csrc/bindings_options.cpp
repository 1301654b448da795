#include <pybind11/stl.h>

#include <string>

#include "bindings.h"
#include "core/options.h"
#include "torch/process_allocator.h"

namespace py = pybind11;

namespace gma {
namespace {

py::dict to_dict(const Options& options) {
    py::dict all;
#define GMA_INTEGER(name, value, unit, min, max, sentence) all[#name] = options.name;
#define GMA_REAL(name, value, unit, min, max, sentence) all[#name] = options.name;
#define GMA_CHOICE(name, value, choices, sentence) all[#name] = options.name;
#define GMA_TEXT(name, value, form, sentence) all[#name] = options.name;
#include "core/options.def"
#undef GMA_INTEGER
#undef GMA_REAL
#undef GMA_CHOICE
#undef GMA_TEXT
    return all;
}

py::list table() {
    py::list rows;
    for (const OptionInfo& info : option_table()) {
        py::dict row;
        row["name"] = info.name;
        row["kind"] = info.kind;
        row["default"] = info.default_value;
        row["unit"] = info.unit;
        row["range"] = info.range;
        row["sentence"] = info.sentence;
        rows.append(row);
    }
    return rows;
}

}  // namespace

void bind_options(py::module_& module) {
    module.def("option_table", &table);
    module.def("parse_options",
               [](const std::string& text) { return to_dict(value_of(parse_options(text))); });
    module.def("print_options", [](const std::string& text) {
        return print_options(value_of(parse_options(text)));
    });
    module.def("configure", [](const std::string& text) {
        check(configure_process_allocator(value_of(parse_options(text))));
    });
    module.def("options_in_force", [] { return to_dict(process_options()); });
    module.def("print_options_in_force", [] { return print_options(process_options()); });
}

}  // namespace gma
