// What of a device's memory other processes may map: for each exported block the chunks that hold
// it, for each such chunk one open file descriptor, whatever number of blocks lie on it.
//   descriptors open == chunks that hold an exported block
// A block is exported until it is freed. An allocated block never moves, so that its chunks stay
// where they are; the descriptors are closed with the last block, or the memory would outlive us.
//
// The device's lock is held for every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/allocator.h"
#include "core/arena.h"

namespace gma {

class Exports {
public:
    Exports(Driver& driver, int device) : driver_(driver), device_(device) {}
    ~Exports();
    Exports(const Exports&) = delete;
    Exports& operator=(const Exports&) = delete;

    // Exports [address, + bytes) of the arena, where a block or a small object lies. Again: the
    // same descriptors.
    Result<ExportedBlock> add(Address address, Bytes bytes, const Arena& arena);
    bool contains(Address address) const { return blocks_.contains(address); }
    // The block at `address` was freed. Returns whether it was exported.
    bool end(Address address) { return !blocks_.empty() && close_block(address); }
    std::size_t descriptor_count() const { return files_.size(); }

private:
    struct File {
        int descriptor = -1;
        std::size_t block_count = 0;
    };
    using Serials = std::vector<std::uint64_t>;

    bool close_block(Address address);
    Status open_files(const std::vector<const Chunk*>& chunks);
    void close_unused(const Serials& serials);

    Driver& driver_;
    const int device_;
    std::unordered_map<Address, Serials> blocks_;    // by the chunks' serial numbers
    std::unordered_map<std::uint64_t, File> files_;  // by a chunk's serial number
};

}  // namespace gma
