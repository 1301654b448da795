// Counts the driver's calls that give, take or map memory or wait, and adds up their time.
//
// CUPTI tells of each call as it enters and leaves the driver, whoever makes it: PyTorch, RMM,
// ours, or the runtime inside cudaMalloc. Nothing is linked: the process has its libcupti already,
// or the caller names one. driver_calls.py holds the other end.
#include <cupti_callbacks.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>

namespace {

// Variants count as one: cuMemAlloc_v2 is cuMemAlloc, cuMemFreeAsync_ptsz is cuMemFreeAsync.
constexpr const char* kNames[] = {
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocManaged",
    "cuMemFree",
    "cuMemAllocAsync",
    "cuMemFreeAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemPoolTrimTo",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuCtxSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuStreamWaitEvent",
};
constexpr int kCount = sizeof kNames / sizeof *kNames;
constexpr CUpti_CallbackId kIdEnd = 4096;  // beyond every number that CUPTI gives a driver call
constexpr std::uint8_t kNone = 0xff;
static_assert(kCount < kNone);

struct Counter {
    std::atomic<std::uint64_t> calls{0};
    std::atomic<std::uint64_t> ns{0};
};

struct Cupti {
    decltype(&cuptiSubscribe) subscribe;
    decltype(&cuptiEnableCallback) enable;
    decltype(&cuptiGetCallbackName) name_of;
};

Counter counters[kCount];
std::uint8_t counter_of[kIdEnd];  // by CUPTI's number of the call; written before the first one
thread_local int paused = 0;      // a thread's own calls only
std::string problem;

std::uint64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

// CUPTI keeps one number for each call from its entry to its exit; 0 stands for one not counted.
void on_call(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    if (domain != CUPTI_CB_DOMAIN_DRIVER_API || id >= kIdEnd || counter_of[id] == kNone) { return; }
    const auto& call = *static_cast<const CUpti_CallbackData*>(data);
    if (call.callbackSite == CUPTI_API_ENTER) {
        *call.correlationData = paused > 0 ? 0 : now_ns();
    } else if (const std::uint64_t begin_ns = *call.correlationData; begin_ns != 0) {
        Counter& counter = counters[counter_of[id]];
        counter.calls.fetch_add(1, std::memory_order_relaxed);
        counter.ns.fetch_add(now_ns() - begin_ns, std::memory_order_relaxed);
    }
}

// Returns whether `name` is `base` or one of its variants: base_v2, base_ptsz, base_v2_ptds.
bool is_variant(const char* name, const char* base) {
    const std::size_t length = std::strlen(base);
    if (std::strncmp(name, base, length) != 0) { return false; }
    const char* rest = name + length;
    if (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9') {
        for (rest += 2; *rest >= '0' && *rest <= '9';) { ++rest; }
    }
    return *rest == '\0' || std::strcmp(rest, "_ptsz") == 0 || std::strcmp(rest, "_ptds") == 0;
}

std::uint8_t counter_for(const char* name) {
    for (int index = 0; index < kCount; ++index) {
        if (is_variant(name, kNames[index])) { return static_cast<std::uint8_t>(index); }
    }
    return kNone;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) { problem = std::string("no ") + name + " in it"; }
    return function != nullptr;
}

bool refused(const char* what, CUptiResult result) {
    if (result != CUPTI_SUCCESS) {
        problem = std::string(what) + " failed with CUptiResult " + std::to_string(result);
    }
    return result != CUPTI_SUCCESS;
}

bool start(const Cupti& cupti) {
    static CUpti_SubscriberHandle subscriber;
    if (refused("cuptiSubscribe", cupti.subscribe(&subscriber, on_call, nullptr))) { return false; }
    int found = 0;
    for (CUpti_CallbackId id = 0; id < kIdEnd; ++id) {
        const char* name = nullptr;
        counter_of[id] = kNone;
        if (cupti.name_of(CUPTI_CB_DOMAIN_DRIVER_API, id, &name) == CUPTI_SUCCESS && name) {
            counter_of[id] = counter_for(name);
        }
    }
    for (CUpti_CallbackId id = 0; id < kIdEnd; ++id) {
        if (counter_of[id] == kNone) { continue; }
        if (refused("cuptiEnableCallback",
                    cupti.enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id))) {
            return false;
        }
        ++found;
    }
    if (found == 0) { problem = "it names none of the driver's calls"; }
    return found > 0;
}

}  // namespace

extern "C" {

// Returns 0 if calls are counted from now on, 1 if there is no such library, 2 if it will not
// count: driver_calls_problem() says why.
int driver_calls_start(const char* library_name) {
    void* library = dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        problem = dlerror();
        return 1;
    }
    Cupti cupti{};
    const bool complete = find(library, "cuptiSubscribe", cupti.subscribe) &&
                          find(library, "cuptiEnableCallback", cupti.enable) &&
                          find(library, "cuptiGetCallbackName", cupti.name_of);
    return complete && start(cupti) ? 0 : 2;
}

const char* driver_calls_problem() { return problem.c_str(); }
int driver_calls_count() { return kCount; }
const char* driver_calls_name(int index) { return kNames[index]; }

// Fills two arrays of driver_calls_count() numbers.
void driver_calls_read(std::uint64_t* calls, std::uint64_t* ns) {
    for (int index = 0; index < kCount; ++index) {
        calls[index] = counters[index].calls.load(std::memory_order_relaxed);
        ns[index] = counters[index].ns.load(std::memory_order_relaxed);
    }
}

// Calls of this thread do not count between the two.
void driver_calls_pause() { ++paused; }
void driver_calls_resume() { --paused; }
}
