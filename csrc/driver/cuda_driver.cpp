#include "driver/cuda_driver.h"

#include <cuda.h>
#include <fcntl.h>

#include <atomic>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "driver/cuda_driver_contents.h"
#include "driver/cuda_driver_contexts.h"
#include "driver/cuda_driver_devices.h"
#include "driver/cuda_driver_entry_points.h"
#include "driver/cuda_driver_events.h"

namespace gma {
namespace {

// Numbers for the default streams, apart from those that cuStreamGetId() deals from 1 up.
constexpr std::uint64_t kPerThreadIds = 1ULL << 63;
constexpr std::uint64_t kLegacyIds = 1ULL << 62;

// Never used again, unlike thread handles.
std::uint64_t this_thread_number() {
    static std::atomic<std::uint64_t> next{1};
    thread_local const std::uint64_t number = next++;
    return number;
}

bool is_legacy(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 1; }
bool is_per_thread(Stream stream) { return reinterpret_cast<std::uintptr_t>(stream) == 2; }
CUstream cuda_stream(Stream stream) { return static_cast<CUstream>(stream); }

CUmemGenericAllocationHandle cuda_handle(Handle handle) {
    return static_cast<CUmemGenericAllocationHandle>(handle);
}

class CudaDriver final : public Driver {
public:
    CudaDriver(CudaEntryPoints api, int device_count)
        : api_(api),
          contexts_(api_, device_count),
          events_(contexts_),
          contents_(contexts_, events_),
          devices_(static_cast<std::size_t>(device_count)) {}

    Status describe_devices() {
        Status status;
        for (int device = 0; status.ok() && device < device_count(); ++device) {
            status = describe_device(api_, device, device_count(), of(device));
        }
        return status;
    }

    int device_count() override { return static_cast<int>(devices_.size()); }
    Result<DeviceProperties> properties(int device) override;
    Result<CardMemory> card_memory(int device) override;
    Result<Address> reserve(int device, Bytes bytes, Bytes alignment) override;
    Status unreserve(Address address, Bytes bytes) override;
    using Driver::create;
    Result<Handle> create(int device, Bytes bytes, Reach reach) override;
    Status map(Address address, Bytes bytes, Handle handle) override;
    using Driver::set_access;
    Status set_access(int device, Address address, Bytes bytes, Reach reach) override;
    Status unmap(Address address, Bytes bytes) override;
    Status release(int device, Handle handle, Bytes bytes) override;
    Result<int> export_handle(int device, Handle handle) override;
    Result<Handle> import_handle(int device, int descriptor, Bytes bytes) override;
    Result<Address> malloc(int device, Bytes bytes) override;
    Status free(int device, Address address) override;
    Result<Event> record(int device, Stream stream) override;
    Result<bool> passed(Event event) override;
    Status wait(Stream stream, Event event) override;
    Status synchronize(Event event) override;
    void recycle(Event event) noexcept override { events_.give_back(CudaEvents::entry_of(event)); }
    Status fill(int device, Stream stream, const std::vector<ByteRange>& ranges,
                std::uint32_t pattern) override {
        return contents_.fill(device, cuda_stream(stream), ranges, pattern);
    }
    Result<Check> check(int device, Stream stream, const std::vector<ByteRange>& ranges,
                        std::uint32_t pattern) override {
        return contents_.check(device, cuda_stream(stream), ranges, pattern);
    }
    CheckAndFill check_and_fill(int device, Stream stream, const ByteRange& range,
                                const ByteRange& block, std::uint32_t pattern) override {
        return contents_.check_and_fill(device, cuda_stream(stream), range, block, pattern);
    }
    Result<bool> checked(Check check, bool wait, std::vector<Finding>& findings) override {
        return contents_.checked(check, wait, findings);
    }
    Status passed_check(Check check, std::vector<Finding>& findings) override {
        return contents_.passed_check(check, findings);
    }
    std::string content_shortcoming(int device) override { return contents_.shortcoming(device); }
    Result<std::uint64_t> stream_id(int device, Stream stream) override;
    Result<bool> capturing(int device, Stream stream) override;
    Status synchronize_device(int device) override;

private:
    CudaDevice& of(int device) { return devices_[static_cast<std::size_t>(device)]; }

    // Runs one driver call in the device's context, with captures elsewhere left alone. `text`
    // makes the words for a failure and is not called otherwise.
    template <class Body, class Text>
    Status call(int device, Body body, Text text) {
        const CurrentContext context(contexts_, device);
        if (!context.status().ok()) { return context.status(); }
        const RelaxedCapture relaxed(api_);
        const CUresult result = body();
        return result == CUDA_SUCCESS ? Status() : cuda_failure(api_, result, text());
    }

    Result<Event> record_here(int device, Stream stream);
    CUresult create_handle(int device, Bytes bytes, Reach reach,
                           CUmemGenericAllocationHandle* handle);
    int device_of(Address address);

    const CudaEntryPoints api_;
    CudaContexts contexts_;
    CudaEvents events_;
    CudaContents contents_;
    std::deque<CudaDevice> devices_;
    // map(), unmap() and unreserve() are told no device; the reservation knows it.
    std::mutex mutex_;
    std::map<Address, int> reservations_;
};

Result<DeviceProperties> CudaDriver::properties(int device) {
    if (device < 0 || device >= device_count()) {
        return Status(Code::DriverFailed, "no device " + std::to_string(device),
                      static_cast<int>(CUDA_ERROR_INVALID_DEVICE));
    }
    return of(device).properties;
}

Result<CardMemory> CudaDriver::card_memory(int device) {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    Status status = call(
        device, [&] { return api_.cuMemGetInfo(&free_bytes, &total_bytes); },
        [&] { return "cuMemGetInfo(device " + std::to_string(device) + ")"; });
    if (!status.ok()) { return status; }
    return CardMemory{.free_bytes = free_bytes, .total_bytes = total_bytes};
}

Result<Address> CudaDriver::reserve(int device, Bytes bytes, Bytes alignment) {
    CUdeviceptr address = 0;
    Status status = call(
        device, [&] { return api_.cuMemAddressReserve(&address, bytes, alignment, 0, 0); },
        [&] { return call_text("cuMemAddressReserve", bytes, device); });
    if (!status.ok()) { return status; }
    const std::lock_guard<std::mutex> guard(mutex_);
    reservations_[address] = device;
    return Address{address};
}

Status CudaDriver::unreserve(Address address, Bytes bytes) {
    const int device = device_of(address);
    Status status = call(
        device, [&] { return api_.cuMemAddressFree(address, bytes); },
        [&] { return call_text("cuMemAddressFree", bytes, device); });
    if (status.ok()) {
        const std::lock_guard<std::mutex> guard(mutex_);
        reservations_.erase(address);
    }
    return status;
}

Result<Handle> CudaDriver::create(int device, Bytes bytes, Reach reach) {
    CUmemGenericAllocationHandle handle = 0;
    Status status = call(
        device, [&] { return create_handle(device, bytes, reach, &handle); },
        [&] { return call_text("cuMemCreate", bytes, device); });
    if (!status.ok()) { return status; }
    return Handle{handle};
}

// Some containers and virtual machines have no exportable, RDMA or compressible memory although
// the attributes say so. Refused once, it is not asked for again.
CUresult CudaDriver::create_handle(int device, Bytes bytes, Reach reach,
                                   CUmemGenericAllocationHandle* handle) {
    CudaDevice& description = of(device);
    for (;;) {
        const CUmemAllocationProp wanted = allocation_properties(device, description, reach);
        const CUresult result = api_.cuMemCreate(handle, bytes, &wanted, 0);
        if (!is_refused(result)) { return result; }
        if (wanted.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
            description.wants_file_handles = false;
        } else if (wanted.allocFlags.gpuDirectRDMACapable != 0) {
            description.wants_rdma = false;
        } else if (wanted.allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE) {
            description.wants_compression = false;
        } else {
            return result;  // plain memory
        }
    }
}

Status CudaDriver::map(Address address, Bytes bytes, Handle handle) {
    const int device = device_of(address);
    return call(
        device, [&] { return api_.cuMemMap(address, bytes, 0, cuda_handle(handle), 0); },
        [&] { return call_text("cuMemMap", bytes, device); });
}

Status CudaDriver::set_access(int device, Address address, Bytes bytes, Reach reach) {
    return call(
        device,
        [&] {
            const std::vector<CUmemAccessDesc>& access = of(device).access;
            return api_.cuMemSetAccess(address, bytes, access.data(),
                                       reach == Reach::Private ? 1 : access.size());
        },
        [&] { return call_text("cuMemSetAccess", bytes, device); });
}

Status CudaDriver::unmap(Address address, Bytes bytes) {
    const int device = device_of(address);
    return call(
        device, [&] { return api_.cuMemUnmap(address, bytes); },
        [&] { return call_text("cuMemUnmap", bytes, device); });
}

Status CudaDriver::release(int device, Handle handle, Bytes bytes) {
    return call(
        device, [&] { return api_.cuMemRelease(cuda_handle(handle)); },
        [&] { return call_text("cuMemRelease", bytes, device); });
}

Result<int> CudaDriver::export_handle(int device, Handle handle) {
    if (!of(device).wants_file_handles) {
        return Status(Code::NotSupported,
                      "this card or its driver gives no memory that has a file descriptor",
                      static_cast<int>(CUDA_ERROR_NOT_SUPPORTED));
    }
    int descriptor = -1;
    Status status = call(
        device,
        [&] {
            return api_.cuMemExportToShareableHandle(&descriptor, cuda_handle(handle),
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        },
        [&] { return "cuMemExportToShareableHandle(device " + std::to_string(device) + ")"; });
    if (!status.ok()) { return status; }
    static_cast<void>(::fcntl(descriptor, F_SETFD, FD_CLOEXEC));
    return descriptor;
}

Result<Handle> CudaDriver::import_handle(int device, int descriptor, Bytes bytes) {
    CUmemGenericAllocationHandle handle = 0;
    // The descriptor itself is passed in place of a pointer.
    auto* wanted = reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr)
        static_cast<std::uintptr_t>(static_cast<unsigned>(descriptor)));
    Status status = call(
        device,
        [&] {
            return api_.cuMemImportFromShareableHandle(&handle, wanted,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        },
        [&] { return call_text("cuMemImportFromShareableHandle", bytes, device); });
    if (!status.ok()) { return status; }
    return Handle{handle};
}

Result<Address> CudaDriver::malloc(int device, Bytes bytes) {
    CUdeviceptr address = 0;
    Status status = call(
        device, [&] { return api_.cuMemAlloc(&address, bytes); },
        [&] { return call_text("cuMemAlloc", bytes, device); });
    if (!status.ok()) { return status; }
    return Address{address};
}

Status CudaDriver::free(int device, Address address) {
    return call(
        device, [&] { return api_.cuMemFree(address); },
        [&] { return "cuMemFree(device " + std::to_string(device) + ")"; });
}

// A stream of another device, on which this one's memory was used, takes only events of its own.
Result<Event> CudaDriver::record(int device, Stream stream) {
    Result<Event> event = record_here(device, stream);
    if (event || event.status().driver_code() != static_cast<int>(CUDA_ERROR_INVALID_HANDLE)) {
        return event;
    }
    const Result<int> owner = device_of_stream(api_, cuda_stream(stream));
    return owner && *owner != device ? record_here(*owner, stream) : event;
}

// Not under RelaxedCapture: an event of a capturing stream would become a part of its graph, and
// that must be an error, not a surprise.
Result<Event> CudaDriver::record_here(int device, Stream stream) {
    const CurrentContext context(contexts_, device);
    if (!context.status().ok()) { return context.status(); }
    Result<CudaEvents::Entry*> entry = events_.take(device);
    if (!entry) { return entry.status(); }
    const CUresult result = api_.cuEventRecord((*entry)->event, cuda_stream(stream));
    if (result != CUDA_SUCCESS) {
        events_.give_back(*entry);
        return cuda_failure(api_, result, "cuEventRecord(device " + std::to_string(device) + ")");
    }
    return CudaEvents::event_of(*entry);
}

Result<bool> CudaDriver::passed(Event event) {
    const CudaEvents::Entry& entry = *CudaEvents::entry_of(event);
    bool is_ready = true;
    Status status = call(
        entry.device,
        [&] {
            const CUresult result = api_.cuEventQuery(entry.event);
            is_ready = result != CUDA_ERROR_NOT_READY;
            return is_ready ? result : CUDA_SUCCESS;
        },
        [&] { return std::string("cuEventQuery"); });
    if (!status.ok()) { return status; }
    return is_ready;
}

Status CudaDriver::wait(Stream stream, Event event) {
    const CudaEvents::Entry& entry = *CudaEvents::entry_of(event);
    const CurrentContext context(contexts_, entry.device);
    if (!context.status().ok()) { return context.status(); }
    const CUresult result = api_.cuStreamWaitEvent(cuda_stream(stream), entry.event, 0);
    return result == CUDA_SUCCESS ? Status() : cuda_failure(api_, result, "cuStreamWaitEvent");
}

Status CudaDriver::synchronize(Event event) {
    const CudaEvents::Entry& entry = *CudaEvents::entry_of(event);
    return call(
        entry.device, [&] { return api_.cuEventSynchronize(entry.event); },
        [&] { return std::string("cuEventSynchronize"); });
}

Result<std::uint64_t> CudaDriver::stream_id(int device, Stream stream) {
    if (is_legacy(stream)) { return kLegacyIds | static_cast<std::uint64_t>(device); }
    if (is_per_thread(stream)) {
        return kPerThreadIds | this_thread_number() << 16 | static_cast<std::uint64_t>(device);
    }
    unsigned long long id = 0;
    Status status = call(
        device, [&] { return api_.cuStreamGetId(cuda_stream(stream), &id); },
        [&] { return "cuStreamGetId(device " + std::to_string(device) + ")"; });
    if (!status.ok()) { return status; }
    return std::uint64_t{id};
}

Result<bool> CudaDriver::capturing(int device, Stream stream) {
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    bool is_implicit = false;
    Status status = call(
        device,
        [&] {
            const CUresult result = api_.cuStreamIsCapturing(cuda_stream(stream), &capture);
            // The legacy stream while another one captures: to use it would break that capture.
            is_implicit = result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            return is_implicit ? CUDA_SUCCESS : result;
        },
        [&] { return "cuStreamIsCapturing(device " + std::to_string(device) + ")"; });
    if (!status.ok()) { return status; }
    return is_implicit || capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

Status CudaDriver::synchronize_device(int device) {
    return call(
        device, [&] { return api_.cuCtxSynchronize(); },
        [&] { return "cuCtxSynchronize(device " + std::to_string(device) + ")"; });
}

int CudaDriver::device_of(Address address) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto after = reservations_.upper_bound(address);
    return after == reservations_.begin() ? -1 : std::prev(after)->second;
}

}  // namespace

Result<std::unique_ptr<Driver>> make_cuda_driver() {
    Result<CudaEntryPoints> api = load_cuda_entry_points();
    if (!api) { return api.status(); }
    int device_count = 0;
    CUresult result = api->cuInit(0);
    if (result == CUDA_SUCCESS) { result = api->cuDeviceGetCount(&device_count); }
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && device_count == 0)) {
        return Status(Code::NotSupported, "the CUDA driver sees no card",
                      static_cast<int>(CUDA_ERROR_NO_DEVICE));
    }
    if (result != CUDA_SUCCESS) { return cuda_failure(*api, result, "cuInit"); }
    auto driver = std::make_unique<CudaDriver>(*api, device_count);
    if (Status status = driver->describe_devices(); !status.ok()) { return status; }
    return Result<std::unique_ptr<Driver>>(std::move(driver));
}

}  // namespace gma
