#include "rig.h"

#include <cstdlib>

namespace rig {
namespace {

long from_environment(const char* name, long otherwise) {
    const char* text = std::getenv(name);
    return text != nullptr && *text != '\0' ? std::strtol(text, nullptr, 10) : otherwise;
}

}  // namespace

const Settings& settings() {
    static const Settings kSettings = {
        static_cast<std::size_t>(from_environment("RIG_CAPACITY_MB", 16384)) << 20,
        static_cast<int>(from_environment("RIG_DEVICES", 1)),
        from_environment("RIG_NO_MAPPING", 0) == 0,
        from_environment("RIG_NO_EXPORT", 0) == 0,
        from_environment("RIG_NO_PEERS", 0) == 0,
    };
    return kSettings;
}

int& current_device() {
    static thread_local int device = 0;
    return device;
}

// The runtime's enum has the same numbers as the driver's.
int device_attribute(int attribute) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            return 1024;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
            return 32;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            return 132;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
            return 2048;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
            return 48 << 10;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            return 227 << 10;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
            return 228 << 10;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
            return 65536;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            return 9;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            return 0;
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
            return settings().has_mapping ? 1 : 0;
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
            return settings().has_export ? 1 : 0;
        case CU_DEVICE_ATTRIBUTE_INTEGRATED:
            return 0;
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
            return 0;
        default:
            return 1;
    }
}

}  // namespace rig
