#include "driver/host_backing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gma {
namespace {

// One sparse file per device. Every handle gets a range of its own that is never used again, so
// memory that was given back reads as zero afterwards and never as somebody else's bytes.
constexpr Bytes kFileBytes = 1ULL << 46;
// An exported range as one number: its size and its offset, both in pages of the system.
constexpr Bytes kRangeUnit = 4_KiB;
constexpr Bytes kOffsetUnits = kFileBytes / kRangeUnit;

Status system_failure(const char* what) {
    return Status(Code::DriverFailed,
                  std::string("host driver: ") + what + " failed: " + std::strerror(errno), errno);
}

void* pointer(Address address) {
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

class RealBacking final : public HostBacking {
public:
    explicit RealBacking(int device_count) : files_(static_cast<std::size_t>(device_count)) {}

    ~RealBacking() override {
        for (const File& file : files_) {
            if (file.descriptor >= 0) { ::close(file.descriptor); }
        }
    }

    Result<Address> reserve(Bytes bytes, Bytes alignment) override {
        void* raw = ::mmap(nullptr, bytes + alignment, PROT_NONE, kNothing, -1, 0);
        if (raw == MAP_FAILED) { return system_failure("mmap of a reservation"); }
        const Address start = reinterpret_cast<Address>(raw);
        const Address aligned = round_up(start, alignment);
        if (aligned > start) { ::munmap(raw, aligned - start); }
        if (const Bytes tail = start + alignment - aligned; tail > 0) {
            ::munmap(pointer(aligned + bytes), tail);
        }
        return aligned;
    }

    void unreserve(Address address, Bytes bytes) override { ::munmap(pointer(address), bytes); }

    Result<Bytes> create(int device, Bytes bytes) override {
        File& file = files_[static_cast<std::size_t>(device)];
        if (file.descriptor < 0) {
            file.descriptor = ::memfd_create("gma_host_device", MFD_CLOEXEC);
            if (file.descriptor < 0) { return system_failure("memfd_create"); }
            if (::ftruncate(file.descriptor, static_cast<off_t>(kFileBytes)) != 0) {
                return system_failure("ftruncate of the device's file");
            }
        }
        const Bytes offset = file.used_bytes;
        file.used_bytes += bytes;
        return offset;
    }

    void release(int device, Bytes offset, Bytes bytes) override {
        ::fallocate(files_[static_cast<std::size_t>(device)].descriptor,
                    FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
    }

    // The position of a descriptor of its own tells which range it stands for.
    Result<int> export_range(int file, Bytes offset, Bytes bytes) override {
        const int descriptor = files_[static_cast<std::size_t>(file)].descriptor;
        const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
        const int made = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
        if (made < 0) { return system_failure("open of the device's file"); }
        const Bytes position = bytes / kRangeUnit * kOffsetUnits + offset / kRangeUnit;
        if (::lseek(made, static_cast<off_t>(position), SEEK_SET) < 0) {
            ::close(made);
            return system_failure("lseek");
        }
        return made;
    }

    Result<ImportedRange> import_range(int descriptor) override {
        const off_t position = ::lseek(descriptor, 0, SEEK_CUR);
        if (position < 0) { return system_failure("lseek"); }
        const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
        if (own < 0) { return system_failure("fcntl"); }
        files_.push_back({own, 0});
        const auto units = static_cast<Bytes>(position);
        return ImportedRange{static_cast<int>(files_.size()) - 1, units % kOffsetUnits * kRangeUnit,
                             units / kOffsetUnits * kRangeUnit};
    }

    void close_import(int file) override {
        ::close(std::exchange(files_[static_cast<std::size_t>(file)].descriptor, -1));
    }

    Status map(int file, Address address, Bytes offset, Bytes bytes) override {
        const int descriptor = files_[static_cast<std::size_t>(file)].descriptor;
        return placed(::mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, descriptor,
                             static_cast<off_t>(offset)));
    }

    Status set_access(Address address, Bytes bytes) override {
        if (::mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE) != 0) {
            return system_failure("mprotect");
        }
        return Status();
    }

    Status unmap(Address address, Bytes bytes) override {
        return placed(::mmap(pointer(address), bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0));
    }

    Result<Address> malloc(Bytes bytes, Bytes alignment) override {
        const Bytes guarded_bytes = guarded(bytes);
        Result<Address> address = reserve(guarded_bytes, std::max(alignment, os_page_bytes_));
        if (address) {
            Status status = set_access(*address, guarded_bytes - os_page_bytes_);
            if (!status.ok()) {
                unreserve(*address, guarded_bytes);
                return status;
            }
        }
        return address;
    }

    void free(Address address, Bytes bytes) override { unreserve(address, guarded(bytes)); }

private:
    // Whole pages and one more that faults, so that a step off the end is noticed.
    Bytes guarded(Bytes bytes) const { return round_up(bytes, os_page_bytes_) + os_page_bytes_; }

    static constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

    static Status placed(const void* result) {
        return result == MAP_FAILED ? system_failure("mmap") : Status();
    }

    struct File {
        int descriptor = -1;
        Bytes used_bytes = 0;
    };
    const Bytes os_page_bytes_ = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    std::vector<File> files_;
};

// Addresses are dealt in order from a counter. One that came back is dealt again for the same
// size, lowest first, so that a repeated run sees the same addresses.
class AddressBacking final : public HostBacking {
public:
    Result<Address> reserve(Bytes bytes, Bytes alignment) override {
        if (const auto found = returned_.find({bytes, alignment}); found != returned_.end()) {
            const auto lowest = found->second.begin();
            const Address address = *lowest;
            found->second.erase(lowest);
            if (found->second.empty()) { returned_.erase(found); }
            dealt_.emplace(address, alignment);
            return address;
        }
        const Address address = round_up(next_, alignment);
        next_ = address + bytes;
        dealt_.emplace(address, alignment);
        return address;
    }

    void unreserve(Address address, Bytes bytes) override {
        const auto dealt = dealt_.find(address);
        returned_[{bytes, dealt->second}].insert(address);
        dealt_.erase(dealt);
    }

    Result<Bytes> create(int, Bytes) override { return Bytes{0}; }
    void release(int, Bytes, Bytes) override {}
    Result<int> export_range(int, Bytes, Bytes) override { return no_memory(); }
    Result<ImportedRange> import_range(int) override { return no_memory(); }
    void close_import(int) override {}
    Status map(int, Address, Bytes, Bytes) override { return Status(); }
    Status set_access(Address, Bytes) override { return Status(); }
    Status unmap(Address, Bytes) override { return Status(); }
    Result<Address> malloc(Bytes bytes, Bytes alignment) override {
        return reserve(bytes, alignment);
    }
    void free(Address address, Bytes bytes) override { unreserve(address, bytes); }

private:
    static Status no_memory() {
        return {Code::NotSupported, "host driver: without memory nothing can be exported"};
    }

    Address next_ = 1_TiB;
    std::map<Address, Bytes> dealt_;                                 // -> alignment
    std::map<std::pair<Bytes, Bytes>, std::set<Address>> returned_;  // {bytes, alignment} ->
};

}  // namespace

std::unique_ptr<HostBacking> make_host_backing(HostMemory memory, int device_count) {
    if (memory == HostMemory::Real) { return std::make_unique<RealBacking>(device_count); }
    return std::make_unique<AddressBacking>();
}

}  // namespace gma
