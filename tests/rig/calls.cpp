#include "rig.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

namespace rig {
namespace {

struct Fault {
    int result;
    long skip;   // calls that still succeed before it
    long times;  // calls that fail after them; -1: all
};

struct Calls {
    std::mutex mutex;
    std::map<std::string, long> counts;
    std::map<std::string, Fault> faults;
    Calls();
};

// "cuMemMap=801,cuMemCreate=2"
Calls::Calls() {
    const char* text = std::getenv("RIG_FAIL");
    std::string rest = text != nullptr ? text : "";
    while (!rest.empty()) {
        const std::size_t comma = rest.find(',');
        const std::string item = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        const std::size_t equals = item.find('=');
        if (equals != std::string::npos) {
            faults[item.substr(0, equals)] = {std::atoi(item.c_str() + equals + 1), 0, -1};
        }
    }
}

std::atomic<bool> context_lost{false};

Calls& calls() {
    static Calls* const kCalls = new Calls();  // used until the last thread ends
    return *kCalls;
}

// "cuMemAlloc_v2" counts as "cuMemAlloc".
std::string plain(std::string name) {
    const std::size_t length = name.size();
    const bool versioned = length > 3 && name[length - 3] == '_' && name[length - 2] == 'v';
    return versioned ? name.substr(0, length - 3) : name;
}

}  // namespace

void lose_context() { context_lost = true; }
bool is_context_lost() { return context_lost; }

CUresult count_call(const char* versioned_name) {
    const std::string name = plain(versioned_name);
    Calls& all = calls();
    const std::lock_guard<std::mutex> lock(all.mutex);
    ++all.counts[name];
    if (is_context_lost()) { return CUDA_ERROR_ILLEGAL_ADDRESS; }
    const auto found = all.faults.find(name);
    if (found == all.faults.end()) { return CUDA_SUCCESS; }
    Fault& fault = found->second;
    if (fault.skip > 0) {
        --fault.skip;
        return CUDA_SUCCESS;
    }
    if (fault.times == 0) { return CUDA_SUCCESS; }
    if (fault.times > 0) { --fault.times; }
    return static_cast<CUresult>(fault.result);
}

long call_count(const char* name) {
    Calls& all = calls();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.counts.find(name);
    return found == all.counts.end() ? 0 : found->second;
}

void fail_call(const char* name, int result, long skip, long times) {
    Calls& all = calls();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.faults[name] = {result, skip, times};
}

}  // namespace rig
