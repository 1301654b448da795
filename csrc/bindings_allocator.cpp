#include <pybind11/stl.h>

#include <cstdint>
#include <string>

#include "bindings.h"
#include "core/allocator.h"
#include "core/statistics.h"
#include "torch/process_allocator.h"

namespace py = pybind11;

namespace gma {
namespace {

// The allocator may wait for the GPU, so none of its calls holds the GIL.
template <class Use>
auto without_gil(Use use) {
    const py::gil_scoped_release release;
    return use();
}

Allocator& allocator() {
    return *value_of(without_gil([] { return process_allocator(); }));
}

py::dict to_dict(const Gauge& gauge) {
    py::dict all;
    all["current"] = gauge.current;
    all["peak"] = gauge.peak;
    all["allocated"] = gauge.allocated;
    all["freed"] = gauge.freed;
    return all;
}

py::dict to_dict(const PooledGauge& gauge) {
    py::dict all;
    all["all"] = to_dict(gauge[0]);
    all["small_pool"] = to_dict(gauge[1]);
    all["large_pool"] = to_dict(gauge[2]);
    return all;
}

py::dict to_dict(const DeviceStatistics& statistics) {
    py::dict all;
#define GMA_GAUGE(name, unit, sentence) all[#name] = to_dict(statistics.name);
#define GMA_COUNTER(name, sentence) all[#name] = statistics.name;
#include "core/statistics.def"
#undef GMA_GAUGE
#undef GMA_COUNTER
    return all;
}

const char* state_name(BlockState state) {
    switch (state) {
        case BlockState::Allocated:
            return "active_allocated";
        case BlockState::PendingFree:
            return "active_pending_free";
        case BlockState::Free:
            return "inactive";
    }
    return "unknown";
}

py::dict to_dict(const SegmentInfo& segment) {
    py::list blocks;
    for (const BlockInfo& info : segment.blocks) {
        py::dict block;
        block["address"] = info.address;
        block["bytes"] = info.bytes;
        block["requested_bytes"] = info.requested_bytes;
        block["state"] = state_name(info.state);
        blocks.append(block);
    }
    py::dict all;
    all["device"] = segment.device;
    all["address"] = segment.address;
    all["bytes"] = segment.bytes;
    all["stream"] = reinterpret_cast<std::uintptr_t>(segment.stream);
    all["pool"] = py::make_tuple(segment.pool.first, segment.pool.second);
    all["is_expandable"] = segment.is_expandable;
    all["blocks"] = blocks;
    return all;
}

const char* strategy_name(Strategy strategy) {
    switch (strategy) {
        case Strategy::Paged:
            return "paged";
        case Strategy::Split:
            return "split";
        case Strategy::Direct:
            return "direct";
        case Strategy::Isolated:
            return "isolated";
    }
    return "unknown";
}

// Zeros before the first use: asking for statistics starts nothing. A forked child is refused.
py::dict statistics(int device) {
    Allocator* const made = process_allocator_if_made();
    if (made == nullptr) { return to_dict(DeviceStatistics()); }
    check(made->check_process());
    return to_dict(without_gil([&] { return made->statistics(device); }));
}

py::list snapshot(int device) {
    py::list segments;
    Allocator* const made = process_allocator_if_made();
    if (made == nullptr) { return segments; }
    check(made->check_process());
    for (const SegmentInfo& segment : without_gil([&] { return made->snapshot(device); })) {
        segments.append(to_dict(segment));
    }
    return segments;
}

Bytes card_bytes(int device) {
    Driver& driver = *value_of(without_gil([] { return process_driver(); }));
    return value_of(without_gil([&] { return driver.properties(device); })).total_bytes;
}

}  // namespace

void bind_allocator(py::module_& module) {
    module.def("is_made", [] { return process_allocator_if_made() != nullptr; });
    module.def("device_count", [] { return allocator().device_count(); });
    module.def("statistics", &statistics);
    module.def("snapshot", &snapshot);
    module.def("card_bytes", &card_bytes);
    module.def("strategy", [](int device) {
        Allocator& all = allocator();  // the levels that page are no less isolated
        const bool isolated = all.options().isolation != "off";
        return strategy_name(isolated ? Strategy::Isolated : all.strategy(device));
    });
    module.def("limit", [](int device) { return allocator().limit(device); });
    module.def("set_limit", [](int device, Bytes bytes) {
        Allocator& all = allocator();
        check(without_gil([&] { return all.set_limit(device, bytes); }));
    });
    module.def("trim", [](int device, Bytes bytes) {
        Allocator& all = allocator();
        return value_of(without_gil([&] { return all.trim(device, bytes); }));
    });
    module.def("reserve", [](int device, Bytes bytes, std::uintptr_t stream) {
        Allocator& all = allocator();
        const auto handle = reinterpret_cast<Stream>(stream);
        check(without_gil([&] { return all.reserve(device, bytes, handle); }));
    });
    module.def("reset_peak_statistics",
               [](int device) { allocator().reset_peak_statistics(device); });
    module.def("reset_accumulated_statistics",
               [](int device) { allocator().reset_accumulated_statistics(device); });
    module.def("check_may_leave", [](std::uintptr_t address) {
        Allocator& all = allocator();
        check(without_gil([&] { return all.check_may_leave(address); }));
    });
    module.def("audit", [] {
        Allocator& all = allocator();
        check(without_gil([&] { return all.audit(); }));
    });
    module.attr("max_request_bytes") = kMaxRequestBytes;
}

}  // namespace gma
