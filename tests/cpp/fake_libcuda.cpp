// A libcuda.so.1 of a few lines, for what can go wrong between finding it and using it. A test
// compiles it. FAKE_LACKS names a function that it does not have, FAKE_INIT is what cuInit()
// answers, FAKE_DEVICES the number of cards; what is asked for goes to stderr.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text == nullptr ? otherwise : std::atoi(text);
}

int init(unsigned) { return number("FAKE_INIT", 0); }
int device_count(int* count) {
    *count = number("FAKE_DEVICES", 1);
    return 0;
}
int total_bytes(std::size_t* bytes, int) {
    *bytes = 1 << 30;
    return 0;
}
int attribute(int* value, int, int) {
    *value = 0;
    return 0;
}
int can_access(int* can, int, int) {
    *can = 0;
    return 0;
}
int error_name(int, const char** name) {
    *name = nullptr;
    return 1;
}
int unexpected() { std::abort(); }

template <class Function>
void* address(Function* function) {
    return reinterpret_cast<void*>(function);
}

}  // namespace

#ifndef FAKE_IS_OLD
FAKE_EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                    unsigned long long flags, int* found) {
    std::fprintf(stderr, "asked %s %d %llu\n", symbol, version, flags);
    const char* lacks = std::getenv("FAKE_LACKS");
    *found = lacks != nullptr && std::strcmp(lacks, symbol) == 0 ? 1 : 0;
    *function = *found != 0                                         ? address(unexpected)
                : std::strcmp(symbol, "cuInit") == 0                ? address(init)
                : std::strcmp(symbol, "cuDeviceGetCount") == 0      ? address(device_count)
                : std::strcmp(symbol, "cuDeviceTotalMem") == 0      ? address(total_bytes)
                : std::strcmp(symbol, "cuDeviceGetAttribute") == 0  ? address(attribute)
                : std::strcmp(symbol, "cuDeviceCanAccessPeer") == 0 ? address(can_access)
                : std::strcmp(symbol, "cuGetErrorName") == 0        ? address(error_name)
                                                                    : address(unexpected);
    return 0;
}
#endif
