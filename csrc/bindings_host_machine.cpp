// A machine on the CPU: the driver there and an allocator over it, as many in a process as are
// wanted, for verify-isolation and for tests. No logic beyond what such a machine is asked.
#include <pybind11/stl.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "core/allocator.h"
#include "driver/attacks.h"
#include "driver/host_driver.h"

namespace py = pybind11;

namespace gma {
namespace {

Stream stream_of(std::uintptr_t number) {
    return reinterpret_cast<Stream>(number);  // NOLINT(performance-no-int-to-ptr)
}

class HostMachine {
public:
    HostMachine(const std::string& options, int device_count, Bytes capacity_bytes,
                Bytes page_bytes)
        : driver_({.device_count = device_count,
                   .capacity_bytes = capacity_bytes,
                   .page_bytes = page_bytes}),
          attacker_(make_host_attacker(driver_)),
          allocator_(value_of(Allocator::create(driver_, value_of(parse_options(options))))) {}

    Allocator& allocator() { return *allocator_; }
    HostDriver& driver() { return driver_; }

    std::unique_ptr<AttackRun> attack(AttackKind kind, Address address, Bytes bytes,
                                      std::uint32_t value, std::uintptr_t stream, int device) {
        const Attack wanted{.kind = kind, .address = address, .bytes = bytes, .value = value};
        return value_of(attacker_->launch(device, stream_of(stream), wanted));
    }

    // Everything that could be a way out of the process: what worked, or why nothing did.
    std::string export_block(Address address) {
        const Result<ExportedBlock> exported = allocator_->export_block(address);
        if (exported) { return "a descriptor of the allocator"; }
        const auto mapping = driver_.mapping_at(address);
        if (!mapping) {
            check(allocator_->base_allocation(address).status());
            return "a CUDA IPC handle, as its segment is of cudaMalloc";
        }
        const Result<int> descriptor = driver_.export_handle(mapping->device, mapping->handle);
        check(descriptor.status());
        ::close(*descriptor);
        return "a descriptor of the driver";
    }

    // A second mapping of the physical memory at `address`, which stays when that is freed.
    Address witness(Address address) {
        const auto mapping = driver_.mapping_at(address);
        if (!mapping) { check({Code::NotSupported, "no handle is mapped there"}); }
        const Address at = value_of(driver_.reserve(mapping->device, mapping->bytes,
                                                    value_of(driver_.properties(0)).page_bytes));
        check(driver_.map(at, mapping->bytes, mapping->handle));
        check(driver_.set_access(mapping->device, at, mapping->bytes, mapping->reach));
        return at + (address - mapping->start);
    }

private:
    HostDriver driver_;
    std::unique_ptr<Attacker> attacker_;
    std::unique_ptr<Allocator> allocator_;
};

// A text for each violation, oldest first. Waits for the device and looks at all live tensors.
std::vector<std::string> violations(HostMachine& machine, int device) {
    check(machine.allocator().check_isolation(device).status());
    std::vector<std::string> texts;
    for (const Violation& found : machine.allocator().isolation_report(device).violations) {
        texts.push_back(violation_text(found));
    }
    return texts;
}

}  // namespace

void bind_machines(py::module_& module) {
    py::class_<HostMachine>(module, "HostMachine")
        .def(py::init<const std::string&, int, Bytes, Bytes>(), py::arg("options"), py::kw_only(),
             py::arg("device_count") = 1, py::arg("capacity_bytes") = Bytes{16_MiB},
             py::arg("page_bytes") = Bytes{64_KiB})
        .def(
            "allocate",
            [](HostMachine& machine, Bytes bytes, std::uintptr_t stream, int device) {
                return value_of(machine.allocator().allocate(device, bytes, stream_of(stream)));
            },
            py::arg("bytes"), py::arg("stream") = 0, py::arg("device") = 0)
        .def("free", [](HostMachine& machine, Address at) { check(machine.allocator().free(at)); })
        .def("record_stream",
             [](HostMachine& machine, Address at, std::uintptr_t stream) {
                 check(machine.allocator().record_stream(at, stream_of(stream)));
             })
        .def(
            "poke",
            [](HostMachine& machine, Address address, Bytes bytes, std::uint32_t value,
               std::uintptr_t stream, int device) {
                return machine.attack(AttackKind::Poke, address, bytes, value, stream, device);
            },
            py::arg("address"), py::arg("bytes"), py::arg("value"), py::arg("stream") = 0,
            py::arg("device") = 0, py::keep_alive<0, 1>())
        .def(
            "peek",
            [](HostMachine& machine, Address address, Bytes bytes, std::uintptr_t stream,
               int device) {
                return machine.attack(AttackKind::Peek, address, bytes, 0, stream, device);
            },
            py::arg("address"), py::arg("bytes"), py::arg("stream") = 0, py::arg("device") = 0,
            py::keep_alive<0, 1>())
        .def("advance",
             [](HostMachine& machine, std::uintptr_t stream, std::size_t count) {
                 return machine.driver().advance(stream_of(stream), count);
             })
        .def("drain", [](HostMachine& machine) { machine.driver().drain_all(); })
        .def(
            "trim",
            [](HostMachine& machine, int device) {
                return value_of(machine.allocator().trim(device));
            },
            py::arg("device") = 0)
        .def("export_block", &HostMachine::export_block)
        .def("witness", &HostMachine::witness)
        .def("violations", &violations, py::arg("device") = 0)
        .def(
            "held_bytes",
            [](HostMachine& machine, int device) { return machine.driver().held_bytes(device); },
            py::arg("device") = 0);
}

}  // namespace gma
