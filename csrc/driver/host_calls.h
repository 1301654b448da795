// The book of driver calls: how many, what they would have cost, and which shall fail.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "driver/driver.h"
#include "driver/host_config.h"

namespace gma {

// CUresult values; the numbers are part of CUDA's ABI.
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaInvalidDevice = 101;
inline constexpr int kCudaInvalidHandle = 400;
inline constexpr int kCudaIllegalAddress = 700;
inline constexpr int kCudaNotSupported = 801;
inline constexpr int kCudaCaptureUnsupported = 900;

struct CallTotals {
    std::array<std::uint64_t, kCallCount> counts{};
    double cost_ns = 0;  // stays 0 with HostCosts::Free

    std::uint64_t count(Call call) const { return counts[static_cast<std::size_t>(call)]; }
};

// Not locked: its owner is.
class HostCalls {
public:
    explicit HostCalls(HostCosts costs) : costs_(costs) {}

    // At the start of each call that can fail: counts it, or says that it shall fail. `call` is
    // empty for those that the totals leave out (reserve, queries ...).
    Status begin(std::optional<Call> call, const char* name) {
        ++fallible_;
        if (call) { ++totals_.counts[static_cast<std::size_t>(*call)]; }
        return faults_.empty() ? Status() : failure(call, name);
    }

    void charge(Call call, Bytes bytes);
    void charge_query();

    const CallTotals& totals() const { return totals_; }
    void reset_totals() { totals_ = {}; }
    std::uint64_t fallible_count() const { return fallible_; }

    struct Fault {
        std::optional<Call> call;  // empty: any call
        std::uint64_t skip;        // so many matching calls succeed first
        std::uint64_t times;       // then so many fail
        std::optional<Code> code;  // empty: OutOfMemory for create and malloc, else DriverFailed
    };
    void add_fault(Fault fault);
    std::uint64_t fired_count() const { return fired_; }
    void clear_faults() { faults_.clear(); }

private:
    Status failure(std::optional<Call> call, const char* name);

    HostCosts costs_;
    CallTotals totals_;
    std::uint64_t fallible_ = 0;
    std::uint64_t fired_ = 0;
    std::vector<Fault> faults_;
};

}  // namespace gma
