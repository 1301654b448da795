#include "driver/host_address_space.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/format.h"

namespace gma {
namespace {

std::string hex(Address address) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text;
    do {
        text.insert(text.begin(), kDigits[address % 16]);
        address /= 16;
    } while (address > 0);
    return "0x" + text;
}

Status broken_rule(const char* name, const std::string& rule, int code = kCudaInvalidValue) {
    return Status(Code::DriverFailed, std::string(name) + " failed: " + rule, code);
}

Status broken_rule(const char* name, Address address, Bytes bytes, const std::string& rule) {
    return Status(
        Code::DriverFailed,
        std::string(name) + "(" + hex(address) + ", " + bytes_text(bytes) + ") failed: " + rule,
        kCudaInvalidValue);
}

Status out_of_memory(const char* name, int device, Bytes bytes, Bytes held, Bytes capacity) {
    return Status(Code::OutOfMemory,
                  std::string(name) + "(" + bytes_text(bytes) + ", device " +
                      std::to_string(device) + ") failed: " + bytes_text(held) + " of " +
                      bytes_text(capacity) + " are held",
                  kCudaOutOfMemory);
}

}  // namespace

HostAddressSpace::HostAddressSpace(const HostDriverConfig& config, HostCalls& calls)
    : has_contents_(config.memory == HostMemory::Real),
      page_bytes_(config.page_bytes),
      capacity_bytes_(config.capacity_bytes),
      calls_(calls),
      backing_(make_host_backing(config.memory, config.device_count)),
      held_bytes_(static_cast<std::size_t>(config.device_count)) {}

HostAddressSpace::~HostAddressSpace() {
    for (const auto& [address, bytes] : reservations_) { backing_->unreserve(address, bytes); }
    for (const auto& [address, segment] : segments_) { backing_->free(address, segment.bytes); }
}

Result<Address> HostAddressSpace::reserve(Bytes bytes, Bytes alignment) {
    if (Status status = check_pages("reserve", alignment, bytes); !status.ok()) { return status; }
    if (alignment < page_bytes_ || (alignment & (alignment - 1)) != 0) {
        return broken_rule("reserve", "alignment must be a power of two and at least a page");
    }
    Result<Address> address = backing_->reserve(bytes, alignment);
    if (address) { reservations_.emplace(*address, bytes); }
    return address;
}

Status HostAddressSpace::unreserve(Address address, Bytes bytes) {
    const auto found = reservations_.find(address);
    if (found == reservations_.end() || found->second != bytes) {
        return broken_rule("unreserve", address, bytes, "no reservation of this start and size");
    }
    if (overlaps_mapping(address, bytes)) {
        return broken_rule("unreserve", address, bytes, "memory is still mapped in it");
    }
    backing_->unreserve(address, bytes);
    reservations_.erase(found);
    return Status();
}

Result<Handle> HostAddressSpace::create(int device, Bytes bytes, Reach reach) {
    if (Status status = check_pages("create", 0, bytes); !status.ok()) { return status; }
    if (!fits(device, bytes)) {
        return out_of_memory("create", device, bytes, held_bytes(device), capacity_bytes_);
    }
    Result<Bytes> offset = backing_->create(device, bytes);
    if (!offset) { return offset.status(); }
    held_bytes_[static_cast<std::size_t>(device)] += bytes;
    calls_.charge(Call::Create, bytes);
    Physical made;
    made.device = device;
    made.bytes = bytes;
    made.offset = *offset;
    made.file = device;
    made.reach = reach;
    return Handle{handles_.insert(made)};
}

Result<int> HostAddressSpace::export_handle(Handle handle) {
    Physical* physical = find(handle);
    if (physical == nullptr || physical->is_released) {
        return broken_rule("export_handle", "no such handle, or it was released");
    }
    if (physical->reach == Reach::Private) {
        return Status(Code::NotSupported, "export_handle failed: the handle is private",
                      kCudaNotSupported);
    }
    Result<int> descriptor =
        backing_->export_range(physical->file, physical->offset, physical->bytes);
    if (descriptor) { physical->is_exported = true; }
    return descriptor;
}

Result<Handle> HostAddressSpace::import_handle(int device, int descriptor, Bytes bytes) {
    Result<ImportedRange> range = backing_->import_range(descriptor);
    if (!range) { return range.status(); }
    if (range->bytes != bytes) {
        backing_->close_import(range->file);
        return broken_rule("import_handle", "the descriptor stands for " +
                                                bytes_text(range->bytes) + ", not for " +
                                                bytes_text(bytes));
    }
    Physical made;
    made.device = device;
    made.bytes = bytes;
    made.offset = range->offset;
    made.file = range->file;
    made.is_imported = true;
    return Handle{handles_.insert(made)};
}

Status HostAddressSpace::map(Address address, Bytes bytes, Handle handle) {
    if (Status status = check_pages("map", address, bytes); !status.ok()) { return status; }
    Physical* physical = find(handle);
    if (physical == nullptr || physical->is_released) {
        return broken_rule("map", address, bytes, "no such handle, or it was released");
    }
    if (physical->bytes != bytes) {
        return broken_rule(
            "map", address, bytes,
            "the handle has " + bytes_text(physical->bytes) + " and is mapped whole or not at all");
    }
    if (!is_reserved(address, bytes)) {
        return broken_rule("map", address, bytes, "the range is not within one reservation");
    }
    if (overlaps_mapping(address, bytes)) {
        return broken_rule("map", address, bytes, "something is mapped there already");
    }
    Status status = backing_->map(physical->file, address, physical->offset, bytes);
    if (status.ok()) {
        ++physical->mapped_count;
        mappings_.emplace(
            address, HostMapping{handle, address, bytes, physical->device, physical->reach, false});
        calls_.charge(Call::Map, bytes);
    }
    return status;
}

Status HostAddressSpace::set_access(int device, Address address, Bytes bytes, Reach reach) {
    Result<Mappings::iterator> first = whole_mappings("set_access", address, bytes);
    if (!first) { return first.status(); }
    for (auto it = *first; it != mappings_.end() && it->first < address + bytes; ++it) {
        const bool is_private = it->second.reach == Reach::Private;
        if (is_private && (reach != Reach::Private || device != it->second.device)) {
            return broken_rule("set_access", address, bytes, "a private handle has no peers");
        }
    }
    if (Status status = backing_->set_access(address, bytes); !status.ok()) { return status; }
    for (auto it = *first; it != mappings_.end() && it->first < address + bytes; ++it) {
        it->second.is_accessible = true;
        calls_.charge(Call::SetAccess, it->second.bytes);
    }
    return Status();
}

Status HostAddressSpace::unmap(Address address, Bytes bytes) {
    Result<Mappings::iterator> first = whole_mappings("unmap", address, bytes);
    if (!first) { return first.status(); }
    if (Status status = backing_->unmap(address, bytes); !status.ok()) { return status; }
    for (auto it = *first; it != mappings_.end() && it->first < address + bytes;) {
        const Handle handle = it->second.handle;
        calls_.charge(Call::Unmap, it->second.bytes);
        it = mappings_.erase(it);
        --find(handle)->mapped_count;
        free_if_unused(handle);
    }
    return Status();
}

Status HostAddressSpace::release(int device, Handle handle, Bytes bytes) {
    Physical* physical = find(handle);
    if (physical == nullptr || physical->is_released) {
        return broken_rule("release", "no such handle, or it was released before");
    }
    if (physical->device != device || physical->bytes != bytes) {
        return broken_rule("release", "the handle has " + bytes_text(physical->bytes) +
                                          " on device " + std::to_string(physical->device) +
                                          ", not " + bytes_text(bytes) + " on device " +
                                          std::to_string(device));
    }
    physical->is_released = true;
    calls_.charge(Call::Release, bytes);
    free_if_unused(handle);
    return Status();
}

Result<Address> HostAddressSpace::malloc(int device, Bytes bytes) {
    if (bytes == 0) { return broken_rule("malloc", "a segment must have at least one byte"); }
    const Bytes rounded = round_up(bytes, kUnitBytes);
    if (bytes > kMaxRequestBytes || !fits(device, rounded)) {
        return out_of_memory("malloc", device, bytes, held_bytes(device), capacity_bytes_);
    }
    // As cudaMalloc: small segments share pages, larger ones begin on one.
    const Bytes alignment = rounded < page_bytes_ ? kUnitBytes : page_bytes_;
    Result<Address> address = backing_->malloc(rounded, alignment);
    if (address) {
        segments_.emplace(*address, Segment{device, rounded});
        held_bytes_[static_cast<std::size_t>(device)] += rounded;
        calls_.charge(Call::Malloc, rounded);
    }
    return address;
}

Status HostAddressSpace::free(int device, Address address) {
    const auto found = segments_.find(address);
    if (found == segments_.end() || found->second.device != device) {
        return broken_rule("free", "no segment of device " + std::to_string(device) +
                                       " starts at " + hex(address));
    }
    const Bytes bytes = found->second.bytes;
    backing_->free(address, bytes);
    segments_.erase(found);
    held_bytes_[static_cast<std::size_t>(device)] -= bytes;
    calls_.charge(Call::Free, bytes);
    return Status();
}

std::vector<HostRange> HostAddressSpace::reserved_ranges() const {
    std::vector<HostRange> ranges;
    for (const auto& [address, bytes] : reservations_) { ranges.push_back({address, bytes}); }
    return ranges;
}

std::vector<HostRange> HostAddressSpace::segments() const {
    std::vector<HostRange> ranges;
    for (const auto& [address, segment] : segments_) { ranges.push_back({address, segment.bytes}); }
    return ranges;
}

std::vector<HostMapping> HostAddressSpace::mappings() const {
    std::vector<HostMapping> all;
    for (const auto& entry : mappings_) { all.push_back(entry.second); }
    return all;
}

std::optional<HostMapping> HostAddressSpace::mapping_at(Address address) const {
    const auto after = mappings_.upper_bound(address);
    if (after == mappings_.begin()) { return std::nullopt; }
    const HostMapping& mapping = std::prev(after)->second;
    if (address - mapping.start >= mapping.bytes) { return std::nullopt; }
    return mapping;
}

Address HostAddressSpace::reachable_end(int device, Address begin, Address end) const {
    Address reached = begin;
    while (reached < end) {
        const std::optional<HostMapping> mapping = mapping_at(reached);
        if (mapping && mapping->is_accessible &&
            (mapping->reach == Reach::Shared || mapping->device == device)) {
            reached = mapping->start + mapping->bytes;
            continue;
        }
        const auto after = segments_.upper_bound(reached);
        if (after == segments_.begin()) { break; }
        const auto& [start, segment] = *std::prev(after);
        if (reached - start >= segment.bytes) { break; }
        reached = start + segment.bytes;
    }
    return std::min(reached, end);
}

HostAddressSpace::Physical* HostAddressSpace::find(Handle handle) {
    return handles_.find(static_cast<std::uint64_t>(handle));
}

bool HostAddressSpace::fits(int device, Bytes bytes) const {
    return bytes <= capacity_bytes_ && held_bytes(device) <= capacity_bytes_ - bytes;
}

Status HostAddressSpace::check_pages(const char* name, Address address, Bytes bytes) const {
    if (bytes == 0 || bytes % page_bytes_ != 0 || address % page_bytes_ != 0) {
        return broken_rule(name, address, bytes,
                           "start and size must be whole pages of " + bytes_text(page_bytes_));
    }
    return Status();
}

bool HostAddressSpace::is_reserved(Address address, Bytes bytes) const {
    const auto after = reservations_.upper_bound(address);
    if (after == reservations_.begin()) { return false; }
    const auto& [start, reserved_bytes] = *std::prev(after);
    return address - start <= reserved_bytes && bytes <= reserved_bytes - (address - start);
}

bool HostAddressSpace::overlaps_mapping(Address address, Bytes bytes) const {
    const auto next = mappings_.lower_bound(address);
    return (next != mappings_.end() && next->first - address < bytes) || mapping_at(address);
}

Result<HostAddressSpace::Mappings::iterator> HostAddressSpace::whole_mappings(const char* name,
                                                                              Address address,
                                                                              Bytes bytes) {
    if (Status status = check_pages(name, address, bytes); !status.ok()) { return status; }
    const auto first = mappings_.find(address);
    Address reached = address;
    for (auto it = first; it != mappings_.end() && reached < address + bytes; ++it) {
        if (it->first != reached) { break; }
        reached += it->second.bytes;
    }
    if (reached != address + bytes) {
        return broken_rule(name, address, bytes, "the range must be whole mappings without a gap");
    }
    return first;
}

void HostAddressSpace::free_if_unused(Handle handle) {
    const Physical& physical = *find(handle);
    if (!physical.is_released || physical.mapped_count > 0) { return; }
    if (physical.is_imported) {
        backing_->close_import(physical.file);
    } else {
        // A descriptor that was handed out keeps the bytes, and nobody tells us of its end.
        if (!physical.is_exported) {
            backing_->release(physical.device, physical.offset, physical.bytes);
        }
        held_bytes_[static_cast<std::size_t>(physical.device)] -= physical.bytes;
    }
    handles_.erase(static_cast<std::uint64_t>(handle));
}

}  // namespace gma
