#include "driver/cuda_driver_entry_points.h"

#include <dlfcn.h>

#include "base/format.h"

namespace gma {
namespace {

using GetProcAddress = decltype(&::cuGetProcAddress);

Status no_driver(const std::string& why) {
    return Status(Code::NotSupported, "no CUDA driver: " + why);
}

// Drivers before 12.0 have no cuGetProcAddress_v2.
Result<GetProcAddress> find_get_proc_address() {
    void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
        const char* reason = ::dlerror();
        return no_driver(reason == nullptr ? "libcuda.so.1 cannot be loaded" : reason);
    }
    void* symbol = ::dlsym(library, "cuGetProcAddress_v2");
    if (symbol == nullptr) {
        return no_driver("libcuda.so.1 is older than CUDA 12.0 (no cuGetProcAddress_v2)");
    }
    return reinterpret_cast<GetProcAddress>(symbol);
}

template <class Function>
Status find(GetProcAddress get_proc_address, const char* name, int version, Function& function) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult result =
        get_proc_address(name, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
    if (result != CUDA_SUCCESS || found != CU_GET_PROC_ADDRESS_SUCCESS || address == nullptr) {
        return no_driver(std::string("libcuda.so.1 has no ") + name + " of version " +
                         std::to_string(version));
    }
    function = reinterpret_cast<Function>(address);
    return Status();
}

}  // namespace

Result<CudaEntryPoints> load_cuda_entry_points() {
    Result<GetProcAddress> get_proc_address = find_get_proc_address();
    if (!get_proc_address) { return get_proc_address.status(); }
    CudaEntryPoints api;
    Status status;
#define GMA_FIND(name, version) \
    if (status.ok()) { status = find(*get_proc_address, #name, version, api.name); }
    GMA_CUDA_ENTRY_POINTS(GMA_FIND)
#undef GMA_FIND
    if (!status.ok()) { return status; }
    return api;
}

std::string call_text(const char* name, Bytes bytes, int device) {
    return std::string(name) + "(" + bytes_text(bytes) + ", device " + std::to_string(device) + ")";
}

Status cuda_failure(const CudaEntryPoints& api, CUresult result, const std::string& call) {
    const char* name = nullptr;
    if (result == CUDA_ERROR_DEINITIALIZED) {
        name = "CUDA_ERROR_DEINITIALIZED";  // by now the driver would not even say this
    } else if (api.cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) {
        name = "CUresult";
    }
    const int number = static_cast<int>(result);
    const Code code = result == CUDA_ERROR_OUT_OF_MEMORY   ? Code::OutOfMemory
                      : result == CUDA_ERROR_NOT_SUPPORTED ? Code::NotSupported
                                                           : Code::DriverFailed;
    return Status(code, call + " failed: " + name + " (" + std::to_string(number) + ")", number);
}

}  // namespace gma
