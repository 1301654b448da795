// The runtime's devices and memory.
#include "rig.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime.h"

#undef cudaGetDeviceProperties

namespace {

// Pinned host memory: what cudaPointerGetAttributes must recognise.
struct HostRanges {
    std::mutex mutex;
    std::map<std::uintptr_t, std::size_t> ranges;
};
HostRanges& host_ranges() {
    static HostRanges* const kRanges = new HostRanges();
    return *kRanges;
}

bool is_pinned(const void* pointer) {
    HostRanges& all = host_ranges();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    auto next = all.ranges.upper_bound(address);
    return next != all.ranges.begin() && (--next, address < next->first + next->second);
}

void set_pinned(const void* pointer, std::size_t bytes) {
    HostRanges& all = host_ranges();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    if (bytes == 0) {
        all.ranges.erase(address);
    } else {
        all.ranges[address] = bytes;
    }
}

CUdeviceptr number(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

bool is_pageable(const void* pointer, std::size_t bytes) {
    // Where nothing is mapped nobody but the copy itself may touch it.
    return rig::owner_of(number(pointer)).device < 0 && !is_pinned(pointer) &&
           rig::reachable(rig::current_device(), number(pointer), bytes);
}

// In the stream's order. Of pageable memory the card gets a copy that is made now, and to pageable
// memory the host waits, as on a card.
enum class Waits { No, Yes };
cudaError_t queue_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream,
                       Waits waits) {
    const int device = rig::current_device();
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    if (is_pageable(from, bytes)) {
        const auto* begin = static_cast<const char*>(from);
        auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
        rig::enqueue(handle, [=] { rig::copy(device, to, staged->data(), bytes); });
    } else {
        rig::enqueue(handle, [=] { rig::copy(device, to, from, bytes); });
    }
    if (waits == Waits::Yes || is_pageable(to, bytes)) { rig::finish(handle); }
    return rig::remember_lost();
}

}  // namespace

// --- devices ------------------------------------------------------------------------------------
RIG_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
    *count = rig::settings().device_count;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaGetDevice(int* device) {
    *device = rig::current_device();
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= rig::settings().device_count) { return cudaErrorInvalidDevice; }
    rig::current_device() = device;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaInitDevice(int, unsigned, unsigned) { return cudaSuccess; }
RIG_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    std::memset(properties, 0, sizeof *properties);
    std::snprintf(properties->name, sizeof properties->name, "Rig card");
    std::memset(&properties->uuid, device + 1, sizeof properties->uuid);
    properties->major = 9;
    properties->totalGlobalMem = rig::settings().capacity_bytes;
    properties->multiProcessorCount = 132;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 227 << 10;
    properties->sharedMemPerMultiprocessor = 228 << 10;
    properties->regsPerBlock = 65536;
    properties->regsPerMultiprocessor = 65536;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->l2CacheSize = 50 << 20;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    *value = rig::device_attribute(static_cast<int>(attribute));
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = rig::settings().has_peers ? 1 : 0;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
RIG_EXPORT cudaError_t cudaGetLastError() { return rig::take_error(); }
RIG_EXPORT cudaError_t cudaPeekAtLastError() { return rig::last_error(); }
RIG_EXPORT const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheRig"; }
RIG_EXPORT const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess:
            return "no error";
        case cudaErrorMemoryAllocation:
            return "out of memory";
        case cudaErrorInvalidValue:
            return "invalid argument";
        case cudaErrorIllegalAddress:
            return "an illegal memory access was encountered";
        default:
            return "an error of the rig";
    }
}
RIG_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                        unsigned version, unsigned long long flags,
                                                        cudaDriverEntryPointQueryResult* status) {
    using Lookup =
        CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
    static void* const kDriver = dlopen("libcuda.so.1", RTLD_LAZY);
    static const auto kLookup = reinterpret_cast<Lookup>(dlsym(kDriver, "cuGetProcAddress_v2"));
    if (kLookup == nullptr) { return cudaErrorInitializationError; }
    kLookup(symbol, function, static_cast<int>(version), flags, nullptr);
    if (status != nullptr) { *status = cudaDriverEntryPointSuccess; }
    return cudaSuccess;
}

// --- memory -----------------------------------------------------------------------------------
RIG_EXPORT cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    *total = rig::settings().capacity_bytes;
    *free = *total - rig::used_bytes(rig::current_device());
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
    RIG_COUNT();
    CUdeviceptr address = 0;
    const CUresult result = rig::allocate(rig::current_device(), bytes, &address);
    *pointer = reinterpret_cast<void*>(address);
    return rig::remember(result);
}
RIG_EXPORT cudaError_t cudaFree(void* pointer) {
    RIG_COUNT();
    if (pointer == nullptr) { return cudaSuccess; }
    rig::finish_all();
    return rig::remember(rig::deallocate(number(pointer)));
}
RIG_EXPORT cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
    *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    set_pinned(*pointer, bytes);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaFreeHost(void* pointer) {
    set_pinned(pointer, 0);
    std::free(pointer);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
    set_pinned(pointer, bytes);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaHostUnregister(void* pointer) {
    set_pinned(pointer, 0);
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
    *device = host;
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                const void* pointer) {
    std::memset(attributes, 0, sizeof *attributes);
    const rig::Owner owner = rig::owner_of(number(pointer));
    if (owner.device >= 0) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->device = owner.device;
        attributes->devicePointer = const_cast<void*>(pointer);
    } else if (is_pinned(pointer)) {
        attributes->type = cudaMemoryTypeHost;
        attributes->hostPointer = attributes->devicePointer = const_cast<void*>(pointer);
    }
    return cudaSuccess;
}
RIG_EXPORT cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
    return queue_copy(to, from, bytes, nullptr, Waits::Yes);
}
RIG_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes,
                                       cudaMemcpyKind, cudaStream_t stream) {
    return queue_copy(to, from, bytes, stream, Waits::No);
}
// By way of the host: each side is reached by its own device.
RIG_EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from,
                                           int from_device, std::size_t bytes,
                                           cudaStream_t stream) {
    RIG_COUNT();
    rig::enqueue(reinterpret_cast<std::uintptr_t>(stream), [=] {
        std::vector<char> staged(bytes);
        rig::copy(from_device, staged.data(), from, bytes);
        rig::copy(to_device, to, staged.data(), bytes);
    });
    return rig::remember_lost();
}
RIG_EXPORT cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
    const cudaError_t error = cudaMemsetAsync(to, value, bytes, nullptr);
    rig::finish(0);
    return error;
}
RIG_EXPORT cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes,
                                       cudaStream_t stream) {
    const int device = rig::current_device();
    rig::enqueue(reinterpret_cast<std::uintptr_t>(stream), [=] {
        rig::set_words(device, number(to), static_cast<unsigned char>(value), 1, bytes);
    });
    return rig::remember_lost();
}
