#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "base/trace_record.h"
#include "bindings.h"
#include "replay/pickle_check.h"
#include "replay/replay.h"
#include "torch/microbench.h"

namespace py = pybind11;

namespace gma {
namespace {

using Table = py::array_t<std::uint64_t, py::array::c_style | py::array::forcecast>;

std::span<const ReplayStep> steps_of(const py::array& steps) {
    if (steps.ndim() != 1 || steps.itemsize() != sizeof(ReplayStep) ||
        !(steps.flags() & py::array::c_style)) {
        throw py::value_error("steps must be one contiguous array of the dtype STEP");
    }
    return {static_cast<const ReplayStep*>(steps.data()), static_cast<std::size_t>(steps.size())};
}

// Rows of a table with a fixed number of columns.
template <class Row>
void each_row(const Table& table, py::ssize_t columns, Row row) {
    if (table.ndim() != 2 || table.shape(1) != columns) {
        throw py::value_error("a table of the trace has the wrong shape");
    }
    const auto cells = table.unchecked<2>();
    for (py::ssize_t i = 0; i < cells.shape(0); ++i) { row(cells, i); }
}

RecordedSegment segment_at(const auto& cells, py::ssize_t i) {
    return {cells(i, 0), cells(i, 1), cells(i, 2), static_cast<std::uint32_t>(cells(i, 3))};
}

ReplayTrace trace_of(const py::array& steps, std::size_t block_count, std::uint64_t event_count,
                     const Table& segments, const Table& start_segments,
                     const Table& start_blocks) {
    ReplayTrace trace;
    trace.steps = steps_of(steps);
    trace.block_count = block_count;
    trace.event_count = event_count;
    each_row(segments, 4, [&](const auto& cells, py::ssize_t i) {
        trace.segments.push_back(segment_at(cells, i));
    });
    each_row(start_segments, 5, [&](const auto& cells, py::ssize_t i) {
        trace.start_segments.push_back({segment_at(cells, i), cells(i, 4) != 0});
    });
    each_row(start_blocks, 3, [&](const auto& cells, py::ssize_t i) {
        trace.start_blocks.push_back(
            {static_cast<std::uint32_t>(cells(i, 0)), cells(i, 1), cells(i, 2)});
    });
    return trace;
}

py::dict dict_of(const CallTotals& calls) {
    static constexpr const char* kNames[kCallCount] = {
        "create", "map",   "set_access", "unmap",       "release", "malloc",
        "free",   "event", "wait",       "synchronize", "fill",    "check"};
    py::dict dict;
    for (std::size_t call = 0; call < calls.counts.size(); ++call) {
        dict[kNames[call]] = calls.counts[call];
    }
    return dict;
}

py::dict dict_of(const ReplayResult& result) {
    py::list rounds;
    for (const ReplayRound& round : result.rounds) {
        rounds.append(py::dict(py::arg("peak_reserved_bytes") = round.peak_reserved_bytes,
                               py::arg("end_reserved_bytes") = round.end_reserved_bytes,
                               py::arg("address_hash") = round.address_hash));
    }
    py::object oom = py::none();
    if (result.oom) {
        oom = py::dict(py::arg("event") = result.oom->event,
                       py::arg("requested_bytes") = result.oom->requested_bytes,
                       py::arg("reserved_bytes") = result.oom->reserved_bytes,
                       py::arg("live_bytes") = result.oom->live_bytes);
    }
    return py::dict(py::arg("peak_reserved_bytes") = result.peak_reserved_bytes,
                    py::arg("end_reserved_bytes") = result.end_reserved_bytes,
                    py::arg("peak_live_bytes") = result.peak_live_bytes,
                    py::arg("end_live_bytes") = result.end_live_bytes,
                    py::arg("driver_calls") = dict_of(result.calls),
                    py::arg("driver_calls_second_half") = dict_of(result.calls_second_half),
                    py::arg("driver_ms") = result.calls.cost_ns * 1e-6,
                    py::arg("driver_ms_second_half") = result.calls_second_half.cost_ns * 1e-6,
                    py::arg("alloc_retries") = result.alloc_retries, py::arg("oom") = oom,
                    py::arg("rounds") = rounds, py::arg("replay_seconds") = result.replay_seconds);
}

py::dict run(const py::array& steps, std::size_t block_count, std::uint64_t event_count,
             const Table& segments, const Table& start_segments, const Table& start_blocks,
             const std::string& allocator, const KeyValues& options, Bytes limit_bytes,
             std::uint32_t repeat, std::uint64_t lag_ns) {
    const ReplayTrace trace =
        trace_of(steps, block_count, event_count, segments, start_segments, start_blocks);
    const ReplaySettings settings{allocator, options, limit_bytes, repeat, lag_ns};
    Result<ReplayResult> result = [&] {
        const py::gil_scoped_release without_gil;
        return replay(trace, settings);
    }();
    return dict_of(value_of(std::move(result)));
}

void check_settings(const std::string& allocator, const KeyValues& options) {
    check(check_replay_settings({allocator, options}));
}

template <class Pairs>
py::dict dict_of_pairs(const Pairs& pairs) {
    py::dict dict;
    for (const auto& [key, value] : pairs) { dict[py::str(std::to_string(key))] = value; }
    return dict;
}

py::dict run_microbench(const std::string& options, double seconds) {
    const Options parsed = value_of(parse_options(options));
    Result<Microbench> result = [&] {
        const py::gil_scoped_release without_gil;
        return microbench(parsed, seconds);
    }();
    const Microbench bench = value_of(std::move(result));
    return py::dict(py::arg("malloc_pair_ns") = dict_of_pairs(bench.malloc_pair_ns),
                    py::arg("pair_ns") = dict_of_pairs(bench.pair_ns),
                    py::arg("pair_ns_live") = dict_of_pairs(bench.live_pair_ns),
                    py::arg("threads") = dict_of_pairs(bench.thread_pair_ns));
}

py::dict trace_format() {
    py::dict actions;
#define GMA_ACTION(name, number, text) actions[text] = number;
    GMA_ACTIONS(GMA_ACTION)
#undef GMA_ACTION
    return py::dict(py::arg("actions") = actions,
                    py::arg("magic") = py::bytes(kTraceMagic.data(), kTraceMagic.size()),
                    py::arg("version") = kTraceVersion,
                    py::arg("header_bytes") = sizeof(TraceHeader),
                    py::arg("record_bytes") = sizeof(TraceRecord));
}

}  // namespace

void bind_replay(py::module_& module) {
    module.def("replay", &run, py::kw_only(), py::arg("steps"), py::arg("block_count"),
               py::arg("event_count"), py::arg("segments"), py::arg("start_segments"),
               py::arg("start_blocks"), py::arg("allocator"), py::arg("options"),
               py::arg("limit_bytes"), py::arg("repeat"), py::arg("lag_ns"));
    module.def("check_replay_settings", &check_settings, py::arg("allocator"), py::arg("options"));
    module.def("replay_allocators", &replay_allocators);
    module.def("check_pickle", [](const py::bytes& data) {
        return check_pickle(static_cast<std::string_view>(data));
    });
    module.def("microbench", &run_microbench, py::arg("options"), py::arg("seconds"));
    module.def("trace_format", &trace_format);
}

}  // namespace gma
