// libnvidia-ml.so.1: enough for PyTorch's out-of-memory text and its search for peers.
#include "rig.h"

namespace {
constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
}  // namespace

struct nvmlMemory {
    unsigned long long total, free, used;
};

RIG_EXPORT int nvmlInit() { return kSuccess; }
RIG_EXPORT int nvmlInit_v2() { return kSuccess; }
RIG_EXPORT int nvmlInitWithFlags(unsigned) { return kSuccess; }
RIG_EXPORT int nvmlShutdown() { return kSuccess; }
RIG_EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = 13000;
    return kSuccess;
}
RIG_EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = static_cast<unsigned>(rig::settings().device_count);
    return kSuccess;
}
RIG_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    *device = reinterpret_cast<void*>(std::uintptr_t{index} + 1);
    return kSuccess;
}
RIG_EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
    return nvmlDeviceGetHandleByIndex_v2(0, device);
}
RIG_EXPORT int nvmlDeviceGetMemoryInfo(void* device, nvmlMemory* memory) {
    const int index = static_cast<int>(reinterpret_cast<std::uintptr_t>(device)) - 1;
    memory->total = rig::settings().capacity_bytes;
    memory->used = rig::used_bytes(index);
    memory->free = memory->total - memory->used;
    return kSuccess;
}
RIG_EXPORT int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
    *count = 0;
    return kSuccess;
}
RIG_EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
RIG_EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
RIG_EXPORT int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }
