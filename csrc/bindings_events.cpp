#include <pybind11/stl.h>

#include <cstdint>
#include <string>

#include "base/trace_record.h"
#include "bindings.h"
#include "core/allocator.h"
#include "core/event_ring.h"
#include "torch/process_allocator.h"

namespace py = pybind11;

namespace gma {
namespace {

EventRing& ring() { return value_of(process_allocator())->events(); }

// Records of base/trace_record.h, oldest first; empty before the allocator is made.
py::bytes records() {
    if (process_allocator_if_made() == nullptr) { return {}; }
    const EventRing::Events events = ring().read();
    return {reinterpret_cast<const char*>(events.records.data()),
            events.records.size() * sizeof(TraceRecord)};
}

}  // namespace

void bind_events(py::module_& module) {
    module.def("event_ring_records", &records);
    module.def("event_ring_start", [](std::uint64_t count) { check(ring().start(count)); });
    module.def("event_ring_stop", [] { ring().stop(); });
    module.def("event_ring_clear", [] { ring().clear(); });
    module.def("event_ring_write", [](const std::string& path) { check(ring().write_file(path)); });
}

}  // namespace gma
