#include "driver/cuda_driver_devices.h"

#include <algorithm>
#include <string>

namespace gma {
namespace {

// An attribute that this driver does not know counts as absent.
bool has(const CudaEntryPoints& api, CUdevice_attribute attribute, int device) {
    int value = 0;
    return api.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

CUmemAccessDesc read_write(int device) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return access;
}

CUresult granularity(const CudaEntryPoints& api, int device, const CudaDevice& description,
                     Reach reach, Bytes& page_bytes) {
    const CUmemAllocationProp wanted = allocation_properties(device, description, reach);
    std::size_t bytes = 0;
    const CUresult result =
        api.cuMemGetAllocationGranularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    page_bytes = bytes;
    return result;
}

}  // namespace

Status describe_device(const CudaEntryPoints& api, int device, int device_count,
                       CudaDevice& description) {
    const std::string where = "(device " + std::to_string(device) + ")";
    std::size_t total_bytes = 0;
    if (const CUresult result = api.cuDeviceTotalMem(&total_bytes, device);
        result != CUDA_SUCCESS) {
        return cuda_failure(api, result, "cuDeviceTotalMem" + where);
    }
    description.properties.total_bytes = total_bytes;
    description.access = {read_write(device)};
    for (int peer = 0; peer < device_count; ++peer) {
        int can_access = 0;
        if (peer != device &&
            api.cuDeviceCanAccessPeer(&can_access, peer, device) == CUDA_SUCCESS &&
            can_access != 0) {
            description.access.push_back(read_write(peer));
        }
    }
    if (!has(api, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device)) {
        return Status();
    }
    description.wants_file_handles =
        has(api, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
    description.wants_rdma =
        has(api, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
    description.wants_compression =
        has(api, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, device);
    Bytes& page_bytes = description.properties.page_bytes;
    CUresult result = granularity(api, device, description, Reach::Shared, page_bytes);
    if (result != CUDA_SUCCESS) {
        return cuda_failure(api, result, "cuMemGetAllocationGranularity" + where);
    }
    Bytes private_page_bytes = 0;
    result = granularity(api, device, description, Reach::Private, private_page_bytes);
    if (result == CUDA_SUCCESS) {
        page_bytes = std::max(page_bytes, private_page_bytes);
    } else {
        description.wants_compression = false;  // plain memory has the pages of shared memory
    }
    return Status();
}

CUmemAllocationProp allocation_properties(int device, const CudaDevice& description, Reach reach) {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = device;
    if (reach == Reach::Private) {
        if (description.wants_compression) {
            wanted.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
        }
        return wanted;
    }
    if (description.wants_file_handles) {
        wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    wanted.allocFlags.gpuDirectRDMACapable = description.wants_rdma ? 1 : 0;
    return wanted;
}

Result<int> device_of_stream(const CudaEntryPoints& api, CUstream stream) {
    CUcontext context = nullptr;
    CUcontext before = nullptr;
    CUdevice device = 0;
    CUresult result = api.cuStreamGetCtx(stream, &context);
    if (result == CUDA_SUCCESS) { result = api.cuCtxGetCurrent(&before); }
    if (result == CUDA_SUCCESS) { result = api.cuCtxSetCurrent(context); }
    if (result != CUDA_SUCCESS) { return cuda_failure(api, result, "cuStreamGetCtx"); }
    result = api.cuCtxGetDevice(&device);
    static_cast<void>(api.cuCtxSetCurrent(before));
    if (result != CUDA_SUCCESS) { return cuda_failure(api, result, "cuCtxGetDevice"); }
    return int{device};
}

}  // namespace gma
