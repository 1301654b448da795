// A stand-in for a machine with NVIDIA cards: enough of the driver, the runtime and NVML for a CUDA
// build of PyTorch to start, allocate, copy, use streams and run out of memory on a CPU.
//
// What is real: device memory (a memfd a card, mapped where the driver would map it, so that an
// early reuse shows as wrong data and a stale address as a fault), capacity, the legality of the
// mapping calls, the order of streams, and the kernels of csrc/kernels. What is not: all other
// kernels do nothing.
//
// librig.so (LD_PRELOAD) holds the state and the runtime's functions; libcuda.so.1 and
// libnvidia-ml.so.1 (LD_LIBRARY_PATH) are thin faces on the same state.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#define RIG_EXPORT extern "C" __attribute__((visibility("default")))

namespace rig {

// --- settings.cpp: read once from the environment -------------------------------------------
struct Settings {
    std::size_t capacity_bytes;  // RIG_CAPACITY_MB, default 16384
    int device_count;            // RIG_DEVICES, default 1
    bool has_mapping;            // RIG_NO_MAPPING=1 hides virtual memory management
    bool has_export;             // RIG_NO_EXPORT=1 hides file descriptors for memory
    bool has_peers;              // RIG_NO_PEERS=1: no card can reach another's memory
};
const Settings& settings();
int& current_device();  // of this thread
int device_attribute(int attribute);

// --- calls.cpp: every call is counted by name and can be made to fail -------------------------
// RIG_FAIL="cuMemMap=801,cuMemCreate=2": these calls return that CUresult.
CUresult count_call(const char* name);
// A kernel or a copy has met an address that it cannot reach: from now on calls return 700, as the
// context is lost. RIG_COUNT() looks at it.
void lose_context();
bool is_context_lost();
long call_count(const char* name);
void fail_call(const char* name, int result, long skip, long times);

// --- memory.cpp ---------------------------------------------------------------------------------
inline constexpr std::size_t kPageBytes = std::size_t{2} << 20;

// Memory that is not exportable has no descriptor, and what is compressible no dma-buf, as on an
// H200.
struct Sort {
    bool exportable = true;
    bool compressible = false;
};
CUresult create(int device, std::size_t bytes, Sort sort, CUmemGenericAllocationHandle* handle);
CUresult release(CUmemGenericAllocationHandle handle);
CUresult reserve(std::size_t bytes, std::size_t alignment, CUdeviceptr* address);
CUresult unreserve(CUdeviceptr address, std::size_t bytes);
CUresult map(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle);
CUresult unmap(CUdeviceptr address, std::size_t bytes);
CUresult set_access(CUdeviceptr address, std::size_t bytes, int device, bool writable);
// That the device may touch all of it; the host's own memory it may.
bool reachable(int device, CUdeviceptr address, std::size_t bytes);
// Between processes: a descriptor of the card's file whose position tells which piece it stands
// for.
enum class Export : std::uint8_t { Handle, DmaBuf };
CUresult export_piece(CUmemGenericAllocationHandle handle, Export as, int* descriptor);
CUresult import_piece(int device, int descriptor, CUmemGenericAllocationHandle* handle);
CUresult allocate(int device, std::size_t bytes, CUdeviceptr* address);
CUresult deallocate(CUdeviceptr address);
// The same for whole allocations, as cudaIpc has it. The descriptor is the rig's own.
CUresult export_allocation(CUdeviceptr address, int* descriptor);
CUresult import_allocation(int device, int descriptor, CUdeviceptr* address);
CUresult close_import(CUdeviceptr address);
std::size_t used_bytes(int device);
struct Owner {
    int device;  // -1: not device memory
    CUdeviceptr base;
    std::size_t bytes;
    CUmemGenericAllocationHandle handle = 0;
};
Owner owner_of(CUdeviceptr address);

// --- timeline.cpp: what is queued on a stream is done at once, unless the stream is slow -------
std::uintptr_t create_stream();
void destroy_stream(std::uintptr_t stream);
std::uint64_t stream_id(std::uintptr_t stream);
int device_of_stream(std::uintptr_t stream);
bool of_one_device(std::uintptr_t event, std::uintptr_t stream);  // else it cannot be recorded
void set_slow(std::uintptr_t stream, bool slow);
// Done at once, or when the stream gets there. It must not call the timeline.
void enqueue(std::uintptr_t stream, std::function<void()> work);
void finish(std::uintptr_t stream);  // the GPU gets through all that was queued
void finish_all();
bool idle(std::uintptr_t stream);

std::uintptr_t create_event();
void destroy_event(std::uintptr_t event);
void record(std::uintptr_t event, std::uintptr_t stream);
bool captured(std::uintptr_t event);  // recorded in a capture: it is a part of the graph only
bool passed(std::uintptr_t event);
void host_waits(std::uintptr_t event);
void stream_waits(std::uintptr_t stream, std::uintptr_t event);

// A capture that a forbidden call has met is invalid: it goes on, and ends in an error.
enum class Capture { None, Active, Invalid };
void set_capturing(std::uintptr_t stream, bool capturing);
Capture capture(std::uintptr_t stream);
CUresult forbid_in_capture(std::uintptr_t stream, CUresult error);  // CUDA_SUCCESS outside one
bool any_capturing();

// --- kernels.cpp: csrc/kernels on the CPU
// --------------------------------------------------------- What a launch does when the stream gets
// there; a kernel of another name does nothing. The parameters are read now.
std::function<void()> kernel_work(const char* name, int device, void** parameters);
// As a copy or a memset of the card: loses the context where it cannot reach.
void copy(int device, void* to, const void* from, std::size_t bytes);
void set_words(int device, CUdeviceptr to, unsigned value, std::size_t word_bytes,
               std::size_t count);

}  // namespace rig
