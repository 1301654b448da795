// Accesses made on purpose, for gpumem_alloc/isolation, and the driver on the CPU as the one of
// this process, so that they can be tried where no card is.
#include "driver/attacks.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "core/allocator.h"
#include "torch/process_allocator.h"

namespace py = pybind11;

namespace gma {
namespace {

// Both live as long as the process, as its allocator does.
HostDriver* host_driver = nullptr;
Attacker* attacker = nullptr;

template <class Use>
auto without_gil(Use use) {
    const py::gil_scoped_release release;
    return use();
}

void use_host_driver(const std::string& options, int device_count, Bytes capacity_bytes) {
    const Options parsed = value_of(parse_options(options));
    auto driver = std::make_unique<HostDriver>(
        HostDriverConfig{.device_count = device_count, .capacity_bytes = capacity_bytes});
    HostDriver* const made = driver.get();
    check(use_driver_for_measurement(std::move(driver), parsed));
    host_driver = made;
    attacker = make_host_attacker(*made).release();
}

Attacker& attacker_of_process() {
    if (attacker == nullptr) { attacker = value_of(make_cuda_attacker()).release(); }
    return *attacker;
}

AttackKind kind_of(const std::string& name) {
    if (name == "poke") { return AttackKind::Poke; }
    if (name == "peek") { return AttackKind::Peek; }
    if (name == "scatter") { return AttackKind::Scatter; }
    if (name == "gather") { return AttackKind::Gather; }
    throw py::value_error("an attack is poke, peek, scatter or gather, not " + name);
}

// None: not yet.
std::optional<std::string> end_of(AttackRun& run, bool wait) {
    switch (value_of(without_gil([&] { return run.end(wait); }))) {
        case AttackEnd::Running:
            return std::nullopt;
        case AttackEnd::Done:
            return "done";
        case AttackEnd::Fault:
            return "fault";
    }
    return std::nullopt;
}

std::unique_ptr<AttackRun> attack(const std::string& kind, int device, std::uintptr_t stream,
                                  Address address, std::int64_t index, Bytes bytes,
                                  std::uint32_t value, std::uint64_t spin_ns) {
    const Attack wanted{.kind = kind_of(kind),
                        .address = address,
                        .index = index,
                        .bytes = bytes,
                        .value = value,
                        .spin_ns = spin_ns};
    Attacker& all = attacker_of_process();
    return value_of(
        without_gil([&] { return all.launch(device, reinterpret_cast<Stream>(stream), wanted); }));
}

HostDriver& host() {
    if (host_driver == nullptr) {
        check(
            {Code::InvalidValue, "this process has no driver on the CPU: use_host_driver() first"});
    }
    return *host_driver;
}

}  // namespace

void bind_attacks(py::module_& module) {
    py::class_<AttackRun>(module, "Attack")
        .def("wait", [](AttackRun& run) { return *end_of(run, true); })
        .def("poll", [](AttackRun& run) { return end_of(run, false); })
        .def_property_readonly("data", [](const AttackRun& run) {
            const std::vector<unsigned char> data = run.data();
            return py::bytes(reinterpret_cast<const char*>(data.data()), data.size());
        });
    module.def("attack", &attack, py::arg("kind"), py::arg("device"), py::arg("stream"),
               py::arg("address"), py::kw_only(), py::arg("index") = 0, py::arg("bytes") = 4,
               py::arg("value") = 0, py::arg("spin_ns") = 0);
    module.def("use_host_driver", &use_host_driver, py::arg("options"), py::kw_only(),
               py::arg("device_count") = 1, py::arg("capacity_bytes") = Bytes{1_GiB});
    module.def("has_host_driver", [] { return host_driver != nullptr; });
    module.def("host_advance", [](int device, std::uintptr_t stream, std::size_t count) {
        return host().advance(reinterpret_cast<Stream>(stream), count, device);
    });
    module.def("host_drain", [] { host().drain_all(); });
    module.def("allocate", [](Bytes bytes, int device, std::uintptr_t stream) {
        Allocator& all = *value_of(without_gil([] { return process_allocator(); }));
        return value_of(without_gil(
            [&] { return all.allocate(device, bytes, reinterpret_cast<Stream>(stream)); }));
    });
    module.def("free", [](Address address) {
        Allocator& all = *value_of(without_gil([] { return process_allocator(); }));
        check(without_gil([&] { return all.free(address); }));
    });
}

}  // namespace gma
