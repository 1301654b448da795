#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "bindings.h"
#include "core/allocator.h"
#include "core/isolation.h"
#include "torch/process_allocator.h"

namespace py = pybind11;

namespace gma {
namespace {

// As gpumem_alloc/isolation/ledger.py reads it.
struct LedgerRow {
    std::uint64_t address;
    std::uint64_t requested_bytes;
    std::uint64_t window_begin;
    std::uint64_t window_end;
    std::uint64_t stream;
    std::uint64_t allocation_number;
    std::uint64_t free_number;
    std::uint64_t allocated_at_ns;
    std::uint64_t freed_at_ns;
    std::uint32_t state;
    std::uint32_t level;
};
static_assert(sizeof(LedgerRow) == 80);

LedgerRow row_of(const LedgerEntry& entry) {
    return {entry.address,
            entry.requested_bytes,
            entry.window_begin,
            entry.window_end,
            reinterpret_cast<std::uintptr_t>(entry.stream),
            entry.allocation_number,
            entry.free_number,
            entry.allocated_at_ns,
            entry.freed_at_ns,
            static_cast<std::uint32_t>(entry.state),
            static_cast<std::uint32_t>(entry.level)};
}

// The allocator may wait for the GPU, so none of its calls holds the GIL.
template <class Use>
auto without_gil(Use use) {
    const py::gil_scoped_release release;
    return use();
}

// Null before the first use: asking what was found starts nothing. A forked child is refused.
Allocator* if_made() {
    Allocator* const made = process_allocator_if_made();
    if (made != nullptr) { check(made->check_process()); }
    return made;
}

Isolation level_named(const std::string& name) {
    const Isolation level = isolation_named(name);
    if (name != name_of(level)) { check({Code::InvalidValue, "no level of isolation: " + name}); }
    return level;
}

py::dict to_dict(const Violation& violation) {
    const LedgerEntry& tensor = violation.tensor;
    const auto* found = reinterpret_cast<const char*>(violation.found.data());
    py::dict all;
    all["kind"] = name_of(violation.kind);
    all["device"] = violation.device;
    all["address"] = tensor.address;
    all["requested_bytes"] = tensor.requested_bytes;
    all["stream"] = reinterpret_cast<std::uintptr_t>(tensor.stream);
    all["level"] = name_of(tensor.level);
    all["allocation_number"] = tensor.allocation_number;
    all["free_number"] = tensor.free_number;
    all["allocated_at_ns"] = tensor.allocated_at_ns;
    all["freed_at_ns"] = tensor.freed_at_ns;
    all["found_at_ns"] = violation.found_at_ns;
    all["first_bad"] = violation.first_bad;
    all["bad_bytes"] = violation.bad_bytes;
    all["found"] = py::bytes(found, violation.found.size());
    all["text"] = violation_text(violation);
    return all;
}

py::dict report(int device) {
    IsolationReport found;
    found.level = isolation_of(process_options());
    if (Allocator* const made = if_made(); made != nullptr) {
        found = without_gil([&] { return made->isolation_report(device); });
    }
    py::list violations;
    for (const Violation& violation : found.violations) { violations.append(to_dict(violation)); }
    py::dict all;
    all["level"] = name_of(found.level);
    all["cached_bytes"] = found.cached_bytes;
    all["waiting_bytes"] = found.waiting_bytes;
    all["quarantined_address_bytes"] = found.quarantined_address_bytes;
    all["unchecked_count"] = found.unchecked_count;
    all["violation_count"] = found.violation_count;
    all["violations"] = violations;
    all["shortcoming"] = found.shortcoming;
    return all;
}

// Of all devices; 0 in a forked child, which has none of its own.
std::uint64_t violation_count() {
    Allocator* const made = process_allocator_if_made();
    if (made == nullptr || !made->check_process().ok()) { return 0; }
    return without_gil([&] {
        std::uint64_t count = 0;
        for (int device = 0; device < made->device_count(); ++device) {
            count += made->isolation_report(device).violation_count;
        }
        return count;
    });
}

py::bytes ledger_rows(int device) {
    Allocator* const made = if_made();
    if (made == nullptr) { return {}; }
    const std::vector<LedgerRow> rows = without_gil([&] {
        std::vector<LedgerRow> all;
        const std::vector<LedgerEntry> entries = made->ledger(device);
        all.reserve(entries.size());
        for (const LedgerEntry& entry : entries) { all.push_back(row_of(entry)); }
        return all;
    });
    return {reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(LedgerRow)};
}

std::int64_t check_isolation(int device) {
    Allocator* const made = if_made();
    if (made == nullptr) { return 0; }
    return value_of(without_gil([&] { return made->check_isolation(device); }));
}

void begin_region(const std::string& level, bool all_threads) {
    const Isolation named = level_named(level);
    Allocator& all = *value_of(without_gil([] { return process_allocator(); }));
    check(without_gil([&] { return all.begin_region(named, all_threads); }));
}

void end_region(bool all_threads) {
    Allocator& all = *value_of(without_gil([] { return process_allocator(); }));
    check(without_gil([&] { return all.end_region(all_threads); }));
}

py::list level_names() {
    py::list names;
    for (int level = 0; level <= static_cast<int>(Isolation::Strict); ++level) {
        names.append(name_of(static_cast<Isolation>(level)));
    }
    return names;
}

}  // namespace

void bind_isolation(py::module_& module) {
    module.def("isolation_levels", &level_names);
    module.def("isolation_report", &report);
    module.def("violation_count", &violation_count);
    module.def("ledger_rows", &ledger_rows);
    module.def("check_isolation", &check_isolation);
    module.def("begin_region", &begin_region);
    module.def("end_region", &end_region);
    module.attr("isolation_pattern") = kPattern;
}

}  // namespace gma
