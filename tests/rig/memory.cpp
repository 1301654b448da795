// Device memory: one sparse memfd a card. A handle is a piece of it, a mapping an mmap of that
// piece, a reservation an inaccessible range. Both faces of the rig (driver and runtime) come here,
// so there is one account.
#include "rig.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace rig {
namespace {

struct Physical {
    int device;
    std::size_t offset;
    std::size_t bytes;
    int file = -1;  // another process's card, for an imported piece; it is not in our account
    bool exported = false;  // others may map it: its bytes stay, as nobody tells us when they end
    bool exportable = true;
    bool compressible = false;
    int mappings = 0;
    bool released = false;
};
struct Mapping {
    std::size_t bytes;
    CUmemGenericAllocationHandle handle;
    unsigned long long reached_by = 0;  // one bit a device
};
struct Allocation {
    CUmemGenericAllocationHandle handle;
    int descriptor = -1;  // once another process may have it, until deallocate()
};
struct Card {
    int file = -1;
    std::size_t end = 0;  // offsets are never used twice: a stale mapping shows zeros, not data
    std::size_t used = 0;
};

// Invariant: used of a card == sum of bytes of its own handles in `physical`.
struct Memory {
    std::mutex mutex;
    std::vector<Card> cards;
    std::map<CUmemGenericAllocationHandle, Physical> physical;
    std::map<CUdeviceptr, std::size_t> reservations;
    std::map<CUdeviceptr, Mapping> mappings;
    std::map<CUdeviceptr, Allocation> allocations;  // made by allocate()
    CUmemGenericAllocationHandle next_handle = 0x1000;
};

Memory& memory() {
    static Memory* const kMemory = [] {
        Memory* made = new Memory();
        made->cards.resize(static_cast<std::size_t>(settings().device_count));
        for (Card& card : made->cards) { card.file = memfd_create("rig-card", MFD_CLOEXEC); }
        return made;
    }();
    return *kMemory;
}

// Position of an exported descriptor: pages of the piece * this + pages before it.
constexpr std::size_t kPositionUnits = std::size_t{1} << 32;

void* pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

bool page_multiple(std::size_t bytes) { return bytes != 0 && bytes % kPageBytes == 0; }

void drop_if_unused_locked(Memory& all, CUmemGenericAllocationHandle handle) {
    const auto found = all.physical.find(handle);
    const Physical& piece = found->second;
    if (!piece.released || piece.mappings != 0) { return; }
    if (piece.file >= 0) {
        close(piece.file);
        all.physical.erase(found);
        return;
    }
    Card& card = all.cards[static_cast<std::size_t>(piece.device)];
    if (!piece.exported) {
        fallocate(card.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(piece.offset), static_cast<off_t>(piece.bytes));
    }
    card.used -= piece.bytes;
    all.physical.erase(found);
}

bool inside_reservation_locked(const Memory& all, CUdeviceptr address, std::size_t bytes) {
    auto next = all.reservations.upper_bound(address);
    if (next == all.reservations.begin()) { return false; }
    --next;
    return address + bytes <= next->first + next->second;
}

bool overlaps_mapping_locked(const Memory& all, CUdeviceptr address, std::size_t bytes) {
    auto next = all.mappings.lower_bound(address + bytes);
    if (next == all.mappings.begin()) { return false; }
    --next;
    return next->first + next->second.bytes > address;
}

// Mappings that tile [address, address + bytes) exactly; empty when they do not.
std::vector<CUdeviceptr> tiles_locked(const Memory& all, CUdeviceptr address, std::size_t bytes) {
    std::vector<CUdeviceptr> tiles;
    CUdeviceptr at = address;
    while (at < address + bytes) {
        const auto found = all.mappings.find(at);
        if (found == all.mappings.end()) { return {}; }
        tiles.push_back(at);
        at += found->second.bytes;
    }
    return at == address + bytes ? tiles : std::vector<CUdeviceptr>{};
}

}  // namespace

CUresult create(int device, std::size_t bytes, Sort sort, CUmemGenericAllocationHandle* handle) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (device < 0 || device >= settings().device_count) { return CUDA_ERROR_INVALID_DEVICE; }
    if (!page_multiple(bytes)) { return CUDA_ERROR_INVALID_VALUE; }
    Card& card = all.cards[static_cast<std::size_t>(device)];
    if (bytes > settings().capacity_bytes - card.used) { return CUDA_ERROR_OUT_OF_MEMORY; }
    if (ftruncate(card.file, static_cast<off_t>(card.end + bytes)) != 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = all.next_handle++;
    Physical piece{device, card.end, bytes};
    piece.exportable = sort.exportable;
    piece.compressible = sort.compressible;
    all.physical[*handle] = piece;
    card.end += bytes;
    card.used += bytes;
    return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.physical.find(handle);
    if (found == all.physical.end() || found->second.released) { return CUDA_ERROR_INVALID_VALUE; }
    found->second.released = true;
    drop_if_unused_locked(all, handle);
    return CUDA_SUCCESS;
}

CUresult export_piece(CUmemGenericAllocationHandle handle, Export as, int* descriptor) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.physical.find(handle);
    if (found == all.physical.end()) { return CUDA_ERROR_INVALID_VALUE; }
    Physical& piece = found->second;
    if (as == Export::Handle && !piece.exportable) { return CUDA_ERROR_INVALID_VALUE; }
    if (as == Export::DmaBuf && piece.compressible) { return CUDA_ERROR_UNKNOWN; }
    piece.exported = true;
    const int own_file = all.cards[static_cast<std::size_t>(piece.device)].file;
    const std::string path =
        "/proc/self/fd/" + std::to_string(piece.file >= 0 ? piece.file : own_file);
    const int made = open(path.c_str(), O_RDWR | O_CLOEXEC);
    const std::size_t position =
        piece.bytes / kPageBytes * kPositionUnits + piece.offset / kPageBytes;
    if (made < 0 || lseek(made, static_cast<off_t>(position), SEEK_SET) < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *descriptor = made;
    return CUDA_SUCCESS;
}

CUresult import_piece(int device, int descriptor, CUmemGenericAllocationHandle* handle) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const off_t position = lseek(descriptor, 0, SEEK_CUR);
    const int own = position > 0 ? fcntl(descriptor, F_DUPFD_CLOEXEC, 0) : -1;
    if (own < 0) { return CUDA_ERROR_INVALID_VALUE; }
    const auto units = static_cast<std::size_t>(position);
    *handle = all.next_handle++;
    all.physical[*handle] = {device, units % kPositionUnits * kPageBytes,
                             units / kPositionUnits * kPageBytes, own};
    return CUDA_SUCCESS;
}

CUresult reserve(std::size_t bytes, std::size_t alignment, CUdeviceptr* address) {
    if (!page_multiple(bytes)) { return CUDA_ERROR_INVALID_VALUE; }
    if (alignment < kPageBytes) { alignment = kPageBytes; }
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* got = mmap(nullptr, bytes + alignment, PROT_NONE, flags, -1, 0);
    if (got == MAP_FAILED) { return CUDA_ERROR_OUT_OF_MEMORY; }
    const auto begin = reinterpret_cast<CUdeviceptr>(got);
    *address = (begin + alignment - 1) / alignment * alignment;
    if (*address != begin) { munmap(got, *address - begin); }
    munmap(pointer(*address + bytes), begin + alignment - *address);
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.reservations[*address] = bytes;
    return CUDA_SUCCESS;
}

CUresult unreserve(CUdeviceptr address, std::size_t bytes) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.reservations.find(address);
    if (found == all.reservations.end() || found->second != bytes ||
        overlaps_mapping_locked(all, address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(pointer(address), bytes);
    all.reservations.erase(found);
    return CUDA_SUCCESS;
}

CUresult map(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.physical.find(handle);
    // A handle is mapped whole, into a reservation, onto nothing else.
    if (found == all.physical.end() || found->second.bytes != bytes || address % kPageBytes != 0 ||
        !inside_reservation_locked(all, address, bytes) ||
        overlaps_mapping_locked(all, address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Physical& piece = found->second;
    const int own_file = all.cards[static_cast<std::size_t>(piece.device)].file;
    const int file = piece.file >= 0 ? piece.file : own_file;
    void* got = mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file,
                     static_cast<off_t>(piece.offset));
    if (got == MAP_FAILED) { return CUDA_ERROR_OUT_OF_MEMORY; }
    ++piece.mappings;
    all.mappings[address] = {bytes, handle};
    return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr address, std::size_t bytes) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const std::vector<CUdeviceptr> tiles = tiles_locked(all, address, bytes);
    if (tiles.empty()) { return CUDA_ERROR_INVALID_VALUE; }
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    mmap(pointer(address), bytes, PROT_NONE, flags, -1, 0);
    for (const CUdeviceptr tile : tiles) {
        const CUmemGenericAllocationHandle handle = all.mappings[tile].handle;
        all.mappings.erase(tile);
        --all.physical[handle].mappings;
        drop_if_unused_locked(all, handle);
    }
    return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr address, std::size_t bytes, int device, bool writable) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const std::vector<CUdeviceptr> tiles = tiles_locked(all, address, bytes);
    if (tiles.empty()) { return CUDA_ERROR_INVALID_VALUE; }
    for (const CUdeviceptr tile : tiles) {
        all.mappings[tile].reached_by |= 1ULL << device;
        const Physical& piece = all.physical[all.mappings[tile].handle];
        if (piece.device != device) { continue; }  // a peer: the CPU has one view of all cards
        mprotect(pointer(tile), piece.bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ);
    }
    return CUDA_SUCCESS;
}

bool reachable(int device, CUdeviceptr address, std::size_t bytes) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const CUdeviceptr end = address + bytes;
    // The first reservation that ends behind the address.
    auto reserved = all.reservations.upper_bound(address);
    if (reserved != all.reservations.begin()) {
        const auto before = std::prev(reserved);
        if (before->first + before->second > address) { reserved = before; }
    }
    if (reserved == all.reservations.end() || reserved->first >= end) { return true; }
    for (CUdeviceptr at = address; at < end;) {
        auto next = all.mappings.upper_bound(at);
        if (next == all.mappings.begin()) { return false; }
        const auto& [begin, mapping] = *std::prev(next);
        if (at - begin >= mapping.bytes || (mapping.reached_by >> device & 1) == 0) {
            return false;
        }
        at = begin + mapping.bytes;
    }
    return true;
}

CUresult allocate(int device, std::size_t bytes, CUdeviceptr* address) {
    if (bytes == 0) { return CUDA_ERROR_INVALID_VALUE; }
    const std::size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = create(device, rounded, {}, &handle);
    if (result != CUDA_SUCCESS) { return result; }
    result = reserve(rounded, kPageBytes, address);
    if (result == CUDA_SUCCESS) {
        result = map(*address, rounded, handle);
        set_access(*address, rounded, device, true);
        for (int peer = 0; settings().has_peers && peer < settings().device_count; ++peer) {
            set_access(*address, rounded, peer, true);
        }
    }
    release(handle);  // the mapping keeps it
    if (result != CUDA_SUCCESS) { return result; }
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.allocations[*address] = {handle};
    return CUDA_SUCCESS;
}

CUresult deallocate(CUdeviceptr address) {
    Memory& all = memory();
    std::size_t bytes = 0;
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        const auto found = all.allocations.find(address);
        if (found == all.allocations.end()) { return CUDA_ERROR_INVALID_VALUE; }
        if (found->second.descriptor >= 0) { close(found->second.descriptor); }
        all.allocations.erase(found);
        bytes = all.mappings[address].bytes;
    }
    unmap(address, bytes);
    return unreserve(address, bytes);
}

CUresult export_allocation(CUdeviceptr address, int* descriptor) {
    Memory& all = memory();
    CUmemGenericAllocationHandle handle = 0;
    {
        const std::lock_guard<std::mutex> lock(all.mutex);
        const auto found = all.allocations.find(address);
        if (found == all.allocations.end()) { return CUDA_ERROR_INVALID_VALUE; }
        *descriptor = found->second.descriptor;
        handle = found->second.handle;
    }
    if (*descriptor >= 0) { return CUDA_SUCCESS; }
    const CUresult result = export_piece(handle, Export::Handle, descriptor);
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (result == CUDA_SUCCESS) { all.allocations[address].descriptor = *descriptor; }
    return result;
}

CUresult import_allocation(int device, int descriptor, CUdeviceptr* address) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = import_piece(device, descriptor, &handle);
    if (result != CUDA_SUCCESS) { return result; }
    std::size_t bytes = 0;
    {
        Memory& all = memory();
        const std::lock_guard<std::mutex> lock(all.mutex);
        bytes = all.physical[handle].bytes;
    }
    result = reserve(bytes, kPageBytes, address);
    if (result == CUDA_SUCCESS) { result = map(*address, bytes, handle); }
    if (result == CUDA_SUCCESS) { result = set_access(*address, bytes, device, true); }
    release(handle);
    return result;
}

CUresult close_import(CUdeviceptr address) {
    const Owner owner = owner_of(address);
    if (owner.device < 0 || owner.base != address) { return CUDA_ERROR_INVALID_VALUE; }
    const CUresult result = unmap(address, owner.bytes);
    return result == CUDA_SUCCESS ? unreserve(address, owner.bytes) : result;
}

std::size_t used_bytes(int device) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.cards[static_cast<std::size_t>(device)].used;
}

Owner owner_of(CUdeviceptr address) {
    Memory& all = memory();
    const std::lock_guard<std::mutex> lock(all.mutex);
    auto next = all.mappings.upper_bound(address);
    if (next == all.mappings.begin()) { return {-1, 0, 0}; }
    --next;
    if (address >= next->first + next->second.bytes) { return {-1, 0, 0}; }
    const Mapping& mapping = next->second;
    return {all.physical[mapping.handle].device, next->first, mapping.bytes, mapping.handle};
}

}  // namespace rig
