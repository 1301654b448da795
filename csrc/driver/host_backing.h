// Where the host driver's addresses and bytes come from. Rules are not checked here: the caller
// (host_address_space) has done so.
#pragma once

#include <memory>

#include "base/status.h"
#include "base/units.h"
#include "driver/host_config.h"

namespace gma {

// What a file descriptor from export_range() stands for, here or in another process.
struct ImportedRange {
    int file = 0;  // for map() and close_import()
    Bytes offset = 0;
    Bytes bytes = 0;
};

class HostBacking {
public:
    virtual ~HostBacking() = default;

    virtual Result<Address> reserve(Bytes bytes, Bytes alignment) = 0;
    virtual void unreserve(Address address, Bytes bytes) = 0;

    // Physical memory is a range of the device's file; its offset is what is returned.
    virtual Result<Bytes> create(int device, Bytes bytes) = 0;
    virtual void release(int device, Bytes offset, Bytes bytes) = 0;

    virtual Result<int> export_range(int file, Bytes offset, Bytes bytes) = 0;
    virtual Result<ImportedRange> import_range(int descriptor) = 0;
    virtual void close_import(int file) = 0;

    // `file` is the number of a device or of an imported range.
    virtual Status map(int file, Address address, Bytes offset, Bytes bytes) = 0;
    virtual Status set_access(Address address, Bytes bytes) = 0;
    virtual Status unmap(Address address, Bytes bytes) = 0;

    // A whole segment, readable and writable at once.
    virtual Result<Address> malloc(Bytes bytes, Bytes alignment) = 0;
    virtual void free(Address address, Bytes bytes) = 0;
};

std::unique_ptr<HostBacking> make_host_backing(HostMemory memory, int device_count);

}  // namespace gma
