// Addresses, physical handles and what is mapped where, under CUDA's rules:
//   - a mapping lies within one reservation, is as large as its handle, and overlaps no other;
//   - mapped, unmapped and made accessible are whole mappings only;
//   - memory lives until its handle is released *and* it is mapped nowhere:
//       held_bytes(device) = sum(bytes of handles that are unreleased or mapped) + sum(segments)
//       held_bytes(device) <= capacity
//     what was imported is held by the process that made it, and does not count here;
// A broken rule is a DriverFailed status, as from the driver, and changes nothing.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "driver/driver.h"
#include "driver/host_backing.h"
#include "driver/host_calls.h"
#include "driver/host_config.h"
#include "driver/host_slots.h"

namespace gma {

struct HostRange {
    Address start = 0;
    Bytes bytes = 0;
};

struct HostMapping {
    Handle handle{};
    Address start = 0;
    Bytes bytes = 0;
    int device = 0;  // whose memory it is
    Reach reach = Reach::Shared;
    bool is_accessible = false;
};

// Not locked: its owner is.
class HostAddressSpace {
public:
    HostAddressSpace(const HostDriverConfig& config, HostCalls& calls);
    ~HostAddressSpace();
    HostAddressSpace(const HostAddressSpace&) = delete;
    HostAddressSpace& operator=(const HostAddressSpace&) = delete;

    Result<Address> reserve(Bytes bytes, Bytes alignment);
    Status unreserve(Address address, Bytes bytes);
    Result<Handle> create(int device, Bytes bytes, Reach reach);
    Status map(Address address, Bytes bytes, Handle handle);
    Status set_access(int device, Address address, Bytes bytes, Reach reach);
    Status unmap(Address address, Bytes bytes);
    Status release(int device, Handle handle, Bytes bytes);
    Result<int> export_handle(Handle handle);
    Result<Handle> import_handle(int device, int descriptor, Bytes bytes);
    Result<Address> malloc(int device, Bytes bytes);
    Status free(int device, Address address);

    std::size_t live_handles() const { return handles_.size(); }
    Bytes held_bytes(int device) const { return held_bytes_[static_cast<std::size_t>(device)]; }
    std::vector<HostRange> reserved_ranges() const;
    std::vector<HostRange> segments() const;
    std::vector<HostMapping> mappings() const;
    std::optional<HostMapping> mapping_at(Address address) const;
    // The first address from `begin` on that the device cannot reach, at most `end`.
    Address reachable_end(int device, Address begin, Address end) const;
    bool has_contents() const { return has_contents_; }

private:
    struct Physical {
        int device = 0;
        Bytes bytes = 0;
        Bytes offset = 0;
        int file = 0;  // the device's, or that of another process
        std::size_t mapped_count = 0;
        Reach reach = Reach::Shared;
        bool is_released = false;
        bool is_exported = false;
        bool is_imported = false;
    };
    struct Segment {
        int device = 0;
        Bytes bytes = 0;
    };
    using Mappings = std::map<Address, HostMapping>;

    Physical* find(Handle handle);
    bool fits(int device, Bytes bytes) const;
    Status check_pages(const char* name, Address address, Bytes bytes) const;
    bool is_reserved(Address address, Bytes bytes) const;
    bool overlaps_mapping(Address address, Bytes bytes) const;
    // The mappings that tile [address, address + bytes) exactly, or why there are none.
    Result<Mappings::iterator> whole_mappings(const char* name, Address address, Bytes bytes);
    void free_if_unused(Handle handle);

    const bool has_contents_;
    const Bytes page_bytes_;
    const Bytes capacity_bytes_;
    HostCalls& calls_;
    std::unique_ptr<HostBacking> backing_;
    std::vector<Bytes> held_bytes_;
    HostSlots<Physical> handles_;
    Mappings mappings_;
    std::map<Address, Bytes> reservations_;
    std::map<Address, Segment> segments_;
};

}  // namespace gma
