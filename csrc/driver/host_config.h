// What a test or a replay chooses about the driver on the CPU.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace gma {

enum class HostMemory : std::uint8_t {
    Real,           // memfd + mmap: contents, aliases and faults are real
    AddressesOnly,  // no memory at all, only addresses and rules; for replay
};

enum class HostTimeline : std::uint8_t {
    Manual,  // streams run only when the test advances them
    Clock,   // an event passes a fixed lag after it was recorded
};

enum class HostCosts : std::uint8_t {
    Estimated,  // the time of each call is summed up (driver_costs.h)
    Free,       // calls are counted only; for microbenchmarks
};

struct HostDriverConfig {
    int device_count = 1;
    Bytes capacity_bytes = 16_GiB;  // of each device
    Bytes page_bytes = 2_MiB;       // with HostMemory::Real a multiple of the system's page
    HostMemory memory = HostMemory::Real;
    HostTimeline timeline = HostTimeline::Manual;
    HostCosts costs = HostCosts::Estimated;
    std::uint64_t lag_ns = 20'000'000;  // Clock: from record() until the event passes
    bool mapping_supported = true;      // false: page_bytes of properties() is 0
};

}  // namespace gma
