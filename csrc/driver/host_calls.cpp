#include "driver/host_calls.h"

#include <string>

#include "driver/driver_costs.h"

namespace gma {

void HostCalls::charge(Call call, Bytes bytes) {
    if (costs_ == HostCosts::Estimated) { totals_.cost_ns += call_cost_ns(call, bytes); }
}

void HostCalls::charge_query() {
    if (costs_ == HostCosts::Estimated) { totals_.cost_ns += kQueryNs; }
}

void HostCalls::add_fault(Fault fault) { faults_.push_back(fault); }

Status HostCalls::failure(std::optional<Call> call, const char* name) {
    for (std::size_t i = 0; i < faults_.size(); ++i) {
        Fault& fault = faults_[i];
        if (fault.call && fault.call != call) { continue; }
        if (fault.skip > 0) {
            --fault.skip;
            continue;
        }
        const bool wants_memory = call == Call::Create || call == Call::Malloc;
        const Code code =
            fault.code.value_or(wants_memory ? Code::OutOfMemory : Code::DriverFailed);
        if (--fault.times == 0) { faults_.erase(faults_.begin() + static_cast<std::ptrdiff_t>(i)); }
        ++fired_;
        return Status(code, std::string(name) + " failed: injected fault",
                      code == Code::OutOfMemory ? kCudaOutOfMemory : kCudaInvalidValue);
    }
    return Status();
}

}  // namespace gma
