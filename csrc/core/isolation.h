// The no-sharing mode: its levels, what is known of each tensor, and what was found wrong.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/units.h"
#include "core/options.h"
#include "driver/driver.h"

namespace gma {

// Each level keeps what those before it promise. docs/isolation.md says what each one catches.
enum class Isolation : std::uint8_t {
    Off,
    PerStream,  // no memory passes from one stream to another
    Packed,     // a redzone behind each block, checked at its free
    Tensor,     // memory and addresses of its own for each block, between guards
    Strict,     // and a free waits until the memory is out of use, so that a later use faults
};
Isolation isolation_of(const Options& options);
Isolation isolation_named(std::string_view name);
const char* name_of(Isolation level);

// What free and fresh memory holds: a NaN as fp64, fp32, fp16 and bf16, -131075 as a 32-bit
// integer. No zero, no denormal, no plausible index.
inline constexpr std::uint32_t kPattern = 0xFFFDFFFD;

struct LedgerEntry {
    enum class State : std::uint8_t { Live, Waiting, Quarantined };
    Address address = 0;
    Bytes requested_bytes = 0;
    Address window_begin = 0;  // what nobody else gets while this entry stands, guards included
    Address window_end = 0;
    Stream stream = nullptr;
    std::uint64_t allocation_number = 0;  // of all allocations of the device, from 1
    std::uint64_t free_number = 0;        // 0: allocated
    std::uint64_t allocated_at_ns = 0;    // CLOCK_REALTIME
    std::uint64_t freed_at_ns = 0;
    State state = State::Live;
    Isolation level = Isolation::Off;
};

struct Violation {
    enum class Kind : std::uint8_t {
        Overrun,         // bytes behind the tensor were written
        Underrun,        // bytes in front of it
        WriteAfterFree,  // bytes of freed memory
        DoubleFree,
        ForeignPointer,  // a free of what was never ours, or not any more
    };
    Kind kind = Kind::Overrun;
    int device = 0;
    LedgerEntry tensor;  // address 0: none is known
    Address first_bad = 0;
    Bytes bad_bytes = 0;
    std::array<unsigned char, 4> found{};  // the first bytes that are wrong
    std::uint64_t found_at_ns = 0;
};
const char* name_of(Violation::Kind kind);
// What happened, why, what to do: a line each.
std::string violation_text(const Violation& violation);
// Of a device that cannot map memory.
std::string no_mapping_text(int device);
// Of a tensor that was to go to another process: three lines again.
std::string no_way_out_text(Isolation level, bool in_region);

}  // namespace gma
