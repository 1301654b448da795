// What is asked of each card once: its page, how its memory may be shared, its peers.
#pragma once

#include <cuda.h>

#include <atomic>
#include <deque>
#include <vector>

#include "base/status.h"
#include "driver/cuda_driver_entry_points.h"
#include "driver/driver.h"

namespace gma {

struct CudaDevice {
    DeviceProperties properties;
    std::vector<CUmemAccessDesc> access;  // itself first, and every peer that can reach its memory
    // What cuMemCreate() is asked for beyond plain memory; given up at the first refusal.
    std::atomic<bool> wants_file_handles{false};  // exportable to another process
    std::atomic<bool> wants_rdma{false};          // reachable by a network card
    // Private memory that the card may compress: the driver gives no dma-buf of it. Of any other
    // memory it does (measured on an H200, driver 580), whatever its handle type and flags.
    std::atomic<bool> wants_compression{false};
};

// None of it makes a context.
Status describe_device(const CudaEntryPoints& api, int device, int device_count,
                       CudaDevice& description);

// What cuMemCreate() is asked for on this device.
CUmemAllocationProp allocation_properties(int device, const CudaDevice& description, Reach reach);

// The device whose stream this is.
Result<int> device_of_stream(const CudaEntryPoints& api, CUstream stream);

}  // namespace gma
