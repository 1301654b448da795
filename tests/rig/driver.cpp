// libcuda.so.1: the driver's entry points, over the rig's state.
#include "rig.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "driver_face.h"

namespace {

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(std::intptr_t{device + 1}); }
int device_of(CUcontext context) {
    return static_cast<int>(reinterpret_cast<std::intptr_t>(context)) - 1;
}
bool valid(int device) { return device >= 0 && device < rig::settings().device_count; }

// Calls that a capture in global mode forbids (CUDA's guide: "Prohibited and unhandled
// operations").
CUresult forbidden_in_capture() {
    const bool relaxed = capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED;
    return !relaxed && rig::any_capturing() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult not_in_the_rig() { return CUDA_ERROR_NOT_SUPPORTED; }

}  // namespace

// --- devices and contexts -------------------------------------------------------------------
RIG_EXPORT CUresult cuInit(unsigned) {
    RIG_COUNT();
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = rig::settings().device_count;
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return valid(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
RIG_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice) {
    std::snprintf(name, static_cast<std::size_t>(length), "Rig card");
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    std::memset(uuid, device + 1, sizeof *uuid);
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    RIG_COUNT();
    *value = rig::device_attribute(attribute);
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
    *bytes = rig::settings().capacity_bytes;
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice, CUdevice) {
    *can = rig::settings().has_peers ? 1 : 0;
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    RIG_COUNT();
    *context = context_of(device);
    return valid(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
RIG_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
RIG_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = context_of(rig::current_device());
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    rig::current_device() = context == nullptr ? 0 : device_of(context);
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
RIG_EXPORT CUresult cuCtxPopCurrent(CUcontext* context) { return cuCtxGetCurrent(context); }
RIG_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    *device = rig::current_device();
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuCtxSynchronize() {
    RIG_COUNT();
    // In relaxed mode too: it would wait for a stream that captures.
    if (rig::any_capturing()) { return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; }
    rig::finish_all();
    return CUDA_SUCCESS;
}

// --- memory -----------------------------------------------------------------------------------
RIG_EXPORT CUresult cuMemGetInfo(std::size_t* free, std::size_t* total) {
    RIG_COUNT();
    *total = rig::settings().capacity_bytes;
    *free = *total - rig::used_bytes(rig::current_device());
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp*,
                                                  CUmemAllocationGranularity_flags) {
    RIG_COUNT();
    *bytes = rig::kPageBytes;
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes,
                                        std::size_t alignment, CUdeviceptr, unsigned long long) {
    RIG_COUNT();
    return rig::reserve(bytes, alignment, address);
}
RIG_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
    RIG_COUNT();
    return rig::unreserve(address, bytes);
}
RIG_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                                const CUmemAllocationProp* properties, unsigned long long) {
    RIG_COUNT();
    const rig::Sort sort{properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE,
                         properties->allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE};
    return rig::create(properties->location.id, bytes, sort, handle);
}
RIG_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    RIG_COUNT();
    return rig::release(handle);
}
RIG_EXPORT CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                             CUmemGenericAllocationHandle handle, unsigned long long) {
    RIG_COUNT();
    return offset == 0 ? rig::map(address, bytes, handle) : CUDA_ERROR_NOT_SUPPORTED;
}
RIG_EXPORT CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
    RIG_COUNT();
    return rig::unmap(address, bytes);
}
RIG_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes,
                                   const CUmemAccessDesc* access, std::size_t count) {
    RIG_COUNT();
    for (std::size_t i = 0; i < count; ++i) {
        const bool writable = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        const int device = access[i].location.id;
        const CUresult result = rig::set_access(address, bytes, device, writable);
        if (result != CUDA_SUCCESS) { return result; }
    }
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                   CUdeviceptr address) {
    RIG_COUNT();
    if (rig::owner_of(address).device < 0) { return CUDA_ERROR_INVALID_VALUE; }
    *flags = rig::reachable(location->id, address, 1) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                      : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
// It counts as no use of the handle: nobody here gives back what was retained.
RIG_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                void* address) {
    RIG_COUNT();
    const rig::Owner owner = rig::owner_of(number(address));
    *handle = owner.handle;
    return owner.device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
RIG_EXPORT CUresult cuMemExportToShareableHandle(void* descriptor,
                                                 CUmemGenericAllocationHandle handle,
                                                 CUmemAllocationHandleType type,
                                                 unsigned long long) {
    RIG_COUNT();
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
               ? rig::export_piece(handle, rig::Export::Handle, static_cast<int*>(descriptor))
               : CUDA_ERROR_NOT_SUPPORTED;
}
RIG_EXPORT CUresult cuMemGetHandleForAddressRange(void* descriptor, CUdeviceptr address,
                                                  std::size_t, CUmemRangeHandleType,
                                                  unsigned long long) {
    RIG_COUNT();
    const rig::Owner owner = rig::owner_of(address);
    return owner.device >= 0
               ? rig::export_piece(owner.handle, rig::Export::DmaBuf, static_cast<int*>(descriptor))
               : CUDA_ERROR_INVALID_VALUE;
}
RIG_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                   void* descriptor,
                                                   CUmemAllocationHandleType type) {
    RIG_COUNT();
    const auto number_of = static_cast<int>(reinterpret_cast<std::uintptr_t>(descriptor));
    return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
               ? rig::import_piece(rig::current_device(), number_of, handle)
               : CUDA_ERROR_NOT_SUPPORTED;
}
RIG_EXPORT CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
    RIG_COUNT();
    const CUresult forbidden = forbidden_in_capture();
    return forbidden != CUDA_SUCCESS ? forbidden
                                     : rig::allocate(rig::current_device(), bytes, address);
}
RIG_EXPORT CUresult cuMemFree(CUdeviceptr address) {
    RIG_COUNT();
    const CUresult forbidden = forbidden_in_capture();
    if (forbidden != CUDA_SUCCESS) { return forbidden; }
    rig::finish_all();  // it waits for the device, as cudaFree does
    return rig::deallocate(address);
}
RIG_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr* base, std::size_t* bytes,
                                         CUdeviceptr address) {
    const rig::Owner owner = rig::owner_of(address);
    if (base != nullptr) { *base = owner.base; }
    if (bytes != nullptr) { *bytes = owner.bytes; }
    return owner.device >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

// --- streams and events ---------------------------------------------------------------------
RIG_EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
    RIG_COUNT();
    *id = rig::stream_id(number(stream));
    // A capturing stream has an id and tells it to nobody: seen on driver 580.
    return rig::forbid_in_capture(number(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}
RIG_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
    RIG_COUNT();
    *context = context_of(rig::device_of_stream(number(stream)));
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    switch (rig::capture(number(stream))) {
        case rig::Capture::None:
            *status = CU_STREAM_CAPTURE_STATUS_NONE;
            break;
        case rig::Capture::Active:
            *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
            break;
        case rig::Capture::Invalid:
            *status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            break;
    }
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    RIG_COUNT();
    const CUresult forbidden =
        rig::forbid_in_capture(number(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (forbidden == CUDA_SUCCESS) { rig::finish(number(stream)); }
    return forbidden;
}
RIG_EXPORT CUresult cuStreamQuery(CUstream stream) {
    return rig::idle(number(stream)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
RIG_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    RIG_COUNT();
    if (!rig::captured(number(event))) {  // a capture cannot depend on work outside it
        const CUresult forbidden =
            rig::forbid_in_capture(number(stream), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        if (forbidden != CUDA_SUCCESS) { return forbidden; }
    }
    rig::stream_waits(number(stream), number(event));
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuEventCreate(CUevent* event, unsigned) {
    RIG_COUNT();
    *event = reinterpret_cast<CUevent>(rig::create_event());
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuEventDestroy(CUevent event) {
    RIG_COUNT();
    rig::destroy_event(number(event));
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    RIG_COUNT();
    if (!rig::of_one_device(number(event), number(stream))) { return CUDA_ERROR_INVALID_HANDLE; }
    rig::record(number(event), number(stream));
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuEventQuery(CUevent event) {
    RIG_COUNT();
    const CUresult forbidden = forbidden_in_capture();
    if (forbidden != CUDA_SUCCESS) { return forbidden; }
    if (rig::captured(number(event))) { return CUDA_ERROR_CAPTURED_EVENT; }
    return rig::passed(number(event)) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
RIG_EXPORT CUresult cuEventSynchronize(CUevent event) {
    RIG_COUNT();
    const CUresult forbidden = forbidden_in_capture();
    if (forbidden != CUDA_SUCCESS) { return forbidden; }
    if (rig::captured(number(event))) { return CUDA_ERROR_CAPTURED_EVENT; }
    rig::host_waits(number(event));
    return CUDA_SUCCESS;
}

// --- names and look-up ------------------------------------------------------------------------
RIG_EXPORT CUresult cuGetErrorName(CUresult result, const char** name) {
    switch (result) {
        case CUDA_SUCCESS:
            *name = "CUDA_SUCCESS";
            break;
        case CUDA_ERROR_INVALID_VALUE:
            *name = "CUDA_ERROR_INVALID_VALUE";
            break;
        case CUDA_ERROR_OUT_OF_MEMORY:
            *name = "CUDA_ERROR_OUT_OF_MEMORY";
            break;
        case CUDA_ERROR_ILLEGAL_ADDRESS:
            *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
            break;
        case CUDA_ERROR_NOT_READY:
            *name = "CUDA_ERROR_NOT_READY";
            break;
        case CUDA_ERROR_NOT_SUPPORTED:
            *name = "CUDA_ERROR_NOT_SUPPORTED";
            break;
        case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
            *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
            break;
        default:
            *name = "CUDA_ERROR_OF_THE_RIG";
            break;
    }
    return CUDA_SUCCESS;
}
RIG_EXPORT CUresult cuGetErrorString(CUresult result, const char** text) {
    return cuGetErrorName(result, text);
}

// The newest version of `symbol` that the rig has. An unknown one gets a function that answers
// "not supported", as PyTorch insists on an address for all that it knows.
RIG_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int, cuuint64_t,
                                     CUdriverProcAddressQueryResult* status) {
    static void* const kSelf = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    const std::string name = symbol;
    *function = nullptr;
    for (const char* suffix : {"_v3", "_v2", ""}) {
        if (*function == nullptr) { *function = dlsym(kSelf, (name + suffix).c_str()); }
    }
    const bool found = *function != nullptr;
    if (!found) { *function = reinterpret_cast<void*>(&not_in_the_rig); }
    if (status != nullptr) {
        *status = found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return CUDA_SUCCESS;
}
