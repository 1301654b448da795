#include "driver/host_driver.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gma {

using Guard = std::lock_guard<std::mutex>;

HostDriver::HostDriver(const HostDriverConfig& config)
    : config_(config),
      calls_(config.costs),
      memory_(config_, calls_),
      streams_(config_, calls_),
      contents_(memory_, streams_, calls_) {}

Status HostDriver::begin(std::optional<Call> call, const char* name, int device) {
    if (Status status = calls_.begin(call, name); !status.ok()) { return status; }
    if (device < 0 || device >= config_.device_count) {
        return Status(Code::DriverFailed,
                      std::string(name) + " failed: device " + std::to_string(device) +
                          " is not one of " + std::to_string(config_.device_count),
                      kCudaInvalidDevice);
    }
    return Status();
}

Status HostDriver::begin_mapping(std::optional<Call> call, const char* name, int device) {
    Status status = begin(call, name, device);
    if (status.ok() && !config_.mapping_supported) {
        return Status(Code::NotSupported,
                      std::string(name) + " failed: no virtual memory management",
                      kCudaNotSupported);
    }
    return status;
}

Result<DeviceProperties> HostDriver::properties(int device) {
    const Guard guard(mutex_);
    if (Status status = begin({}, "properties", device); !status.ok()) { return status; }
    return DeviceProperties{.page_bytes = config_.mapping_supported ? config_.page_bytes : 0,
                            .total_bytes = config_.capacity_bytes};
}

Result<CardMemory> HostDriver::card_memory(int device) {
    const Guard guard(mutex_);
    ++card_memory_calls_;
    if (Status status = begin({}, "card_memory", device); !status.ok()) { return status; }
    return CardMemory{.free_bytes = config_.capacity_bytes - memory_.held_bytes(device),
                      .total_bytes = config_.capacity_bytes};
}

Result<Address> HostDriver::reserve(int device, Bytes bytes, Bytes alignment) {
    const Guard guard(mutex_);
    if (Status status = begin_mapping({}, "reserve", device); !status.ok()) { return status; }
    return memory_.reserve(bytes, alignment);
}

Status HostDriver::unreserve(Address address, Bytes bytes) {
    const Guard guard(mutex_);
    Status status = begin_mapping({}, "unreserve", 0);
    return status.ok() ? memory_.unreserve(address, bytes) : status;
}

Result<Handle> HostDriver::create(int device, Bytes bytes, Reach reach) {
    const Guard guard(mutex_);
    if (Status status = begin_mapping(Call::Create, "create", device); !status.ok()) {
        return status;
    }
    return memory_.create(device, bytes, reach);
}

Status HostDriver::map(Address address, Bytes bytes, Handle handle) {
    const Guard guard(mutex_);
    Status status = begin_mapping(Call::Map, "map", 0);
    return status.ok() ? memory_.map(address, bytes, handle) : status;
}

Status HostDriver::set_access(int device, Address address, Bytes bytes, Reach reach) {
    const Guard guard(mutex_);
    Status status = begin_mapping(Call::SetAccess, "set_access", device);
    return status.ok() ? memory_.set_access(device, address, bytes, reach) : status;
}

Status HostDriver::unmap(Address address, Bytes bytes) {
    const Guard guard(mutex_);
    Status status = begin_mapping(Call::Unmap, "unmap", 0);
    return status.ok() ? memory_.unmap(address, bytes) : status;
}

Status HostDriver::release(int device, Handle handle, Bytes bytes) {
    const Guard guard(mutex_);
    Status status = begin_mapping(Call::Release, "release", device);
    return status.ok() ? memory_.release(device, handle, bytes) : status;
}

Result<int> HostDriver::export_handle(int device, Handle handle) {
    const Guard guard(mutex_);
    Status status = begin_mapping({}, "export_handle", device);
    if (!status.ok()) { return status; }
    return memory_.export_handle(handle);
}

Result<Handle> HostDriver::import_handle(int device, int descriptor, Bytes bytes) {
    const Guard guard(mutex_);
    Status status = begin_mapping({}, "import_handle", device);
    if (!status.ok()) { return status; }
    return memory_.import_handle(device, descriptor, bytes);
}

Result<Address> HostDriver::malloc(int device, Bytes bytes) {
    const Guard guard(mutex_);
    if (Status status = begin(Call::Malloc, "malloc", device); !status.ok()) { return status; }
    return memory_.malloc(device, bytes);
}

// Does not wait for the device, although cudaFree does: nobody may lean on that.
Status HostDriver::free(int device, Address address) {
    const Guard guard(mutex_);
    Status status = begin(Call::Free, "free", device);
    return status.ok() ? memory_.free(device, address) : status;
}

Result<Event> HostDriver::record(int device, Stream stream) {
    const Guard guard(mutex_);
    if (Status status = begin(Call::Event, "record", device); !status.ok()) { return status; }
    return streams_.record(device, stream);
}

Result<bool> HostDriver::passed(Event event) {
    const Guard guard(mutex_);
    if (Status status = begin({}, "passed", 0); !status.ok()) { return status; }
    return streams_.passed(event);
}

Status HostDriver::wait(Stream stream, Event event) {
    const Guard guard(mutex_);
    Status status = begin(Call::Wait, "wait", 0);
    return status.ok() ? streams_.wait(stream, event) : status;
}

Status HostDriver::synchronize(Event event) {
    const Guard guard(mutex_);
    Status status = begin(Call::Synchronize, "synchronize", 0);
    return status.ok() ? streams_.synchronize(event) : status;
}

void HostDriver::recycle(Event event) noexcept {
    const Guard guard(mutex_);
    streams_.recycle(event);
}

Status HostDriver::fill(int device, Stream stream, const std::vector<ByteRange>& ranges,
                        std::uint32_t pattern) {
    const Guard guard(mutex_);
    Status status = begin(Call::Fill, "fill", device);
    return status.ok() ? contents_.fill(device, stream, ranges, pattern) : status;
}

Result<Check> HostDriver::check(int device, Stream stream, const std::vector<ByteRange>& ranges,
                                std::uint32_t pattern) {
    const Guard guard(mutex_);
    if (Status status = begin(Call::Check, "check", device); !status.ok()) { return status; }
    return contents_.check(device, stream, ranges, pattern);
}

Result<bool> HostDriver::checked(Check check, bool wait, std::vector<Finding>& findings) {
    const Guard guard(mutex_);
    const std::optional<Call> call = wait ? std::optional(Call::Synchronize) : std::nullopt;
    if (Status status = begin(call, "checked", 0); !status.ok()) {
        contents_.forget(check);
        return status;
    }
    return contents_.checked(check, wait, findings);
}

Status HostDriver::passed_check(Check check, std::vector<Finding>& findings) {
    const Guard guard(mutex_);
    return contents_.passed_check(check, findings);
}

Result<std::uint64_t> HostDriver::stream_id(int device, Stream stream) {
    const Guard guard(mutex_);
    if (Status status = begin({}, "stream_id", device); !status.ok()) { return status; }
    return streams_.stream_id(device, stream);
}

Result<bool> HostDriver::capturing(int device, Stream stream) {
    const Guard guard(mutex_);
    if (Status status = begin({}, "capturing", device); !status.ok()) { return status; }
    return streams_.capturing(device, stream);
}

Status HostDriver::synchronize_device(int device) {
    const Guard guard(mutex_);
    Status status = begin(Call::Synchronize, "synchronize_device", device);
    return status.ok() ? streams_.synchronize_device(device) : status;
}

}  // namespace gma
