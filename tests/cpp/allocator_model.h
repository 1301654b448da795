// An allocator over the host driver beside a plain model of it. After each step everything is
// counted anew; each block is filled by a kernel on its stream and checked by another before its
// free, so that memory that is handed out, moved or given back too early shows as wrong data.
#pragma once

#include <doctest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "driver/host_driver.h"

namespace gma {

inline Stream stream_number(std::uintptr_t number) {
    return number == 0 ? nullptr : reinterpret_cast<Stream>(number * 0x1000);
}

class AllocatorModel {
public:
    struct Block {
        int device = 0;
        Bytes bytes = 0;
        Stream stream = nullptr;
        unsigned char value = 0;
    };

    AllocatorModel(const Options& options, const HostDriverConfig& config)
        : driver(config), options_(options) {
        Result<std::unique_ptr<Allocator>> made = Allocator::create(driver, options);
        REQUIRE_MESSAGE(made, made.status().message());
        allocator = std::move(*made);
    }

    // 0 when it is out of memory; any other failure ends the test.
    Address try_allocate(Bytes bytes, Stream stream = nullptr, int device = 0) {
        const Result<Address> address = allocator->allocate(device, bytes, stream);
        if (!address) {
            check_books(device);
            REQUIRE_MESSAGE(address.status().code() == Code::OutOfMemory,
                            address.status().message());
            return 0;
        }
        REQUIRE(*address != 0);
        CHECK(*address % kUnitBytes == 0);
        check_apart(*address, bytes);
        const Block block{device, bytes, stream, next_value_++};
        blocks.emplace(*address, block);
        check_books(device);
        driver.launch(stream, [this, at = *address, block] { fill(at, block); }, device);
        return *address;
    }
    Address allocate(Bytes bytes, Stream stream = nullptr, int device = 0) {
        const Address address = try_allocate(bytes, stream, device);
        REQUIRE(address != 0);
        return address;
    }

    void record(Address address, Stream stream) {
        const Status status = allocator->record_stream(address, stream);
        REQUIRE_MESSAGE(status.ok(), status.message());
        check_books(blocks.at(address).device);
    }
    // A kernel on `stream`, after what was queued on the block's own; wrong contents are counted.
    void launch_check(Address address, Stream stream) {
        const Block& block = blocks.at(address);
        if (stream != block.stream) { make_wait(stream, block.stream, block.device); }
        driver.launch(stream, [this, address, block] { check(address, block); }, block.device);
    }
    void free(Address address) {
        const Block block = blocks.at(address);
        launch_check(address, block.stream);
        forget(address);
        const Status status = allocator->free(address);
        REQUIRE_MESSAGE(status.ok(), status.message());
        check_books(block.device);
    }
    // For a block whose free was seen elsewhere.
    void forget(Address address) { blocks.erase(address); }
    void free_all() {
        while (!blocks.empty()) { free(blocks.begin()->first); }
    }
    // Everything is freed, drained and given back.
    void finish() {
        free_all();
        driver.drain_all();
        for (int device = 0; device < driver.device_count(); ++device) {
            const Result<Bytes> given = allocator->trim(device);
            REQUIRE_MESSAGE(given, given.status().message());
            check_books(device);
            CHECK(driver.held_bytes(device) == 0);
        }
        CHECK(mismatch_count == 0);
        CHECK(driver.capture_violations() == 0);
    }

    DeviceStatistics statistics(int device = 0) { return allocator->statistics(device); }
    Bytes reserved_bytes(int device = 0) {
        return static_cast<Bytes>(statistics(device).reserved_bytes[0].current);
    }

    // The audit, the statistics and the snapshot against the model and the driver.
    void check_books(int device) {
        const Status audit = allocator->audit();
        REQUIRE_MESSAGE(audit.ok(), audit.message());
        const DeviceStatistics now = statistics(device);
        std::int64_t count = 0;
        Bytes requested_bytes = 0;
        for (const auto& [address, block] : blocks) {
            if (block.device != device) { continue; }
            ++count;
            requested_bytes += block.bytes;
        }
        REQUIRE(now.allocation[0].current == count);
        REQUIRE(static_cast<Bytes>(now.requested_bytes[0].current) == requested_bytes);
        REQUIRE(now.allocated_bytes[0].current >= now.requested_bytes[0].current);
        REQUIRE(now.active[0].current >= now.allocation[0].current);
        REQUIRE(now.active_bytes[0].current >= now.allocated_bytes[0].current);
        REQUIRE(now.reserved_bytes[0].current >= now.active_bytes[0].current);
        if (now.leaked_handles == 0) {
            REQUIRE(static_cast<Bytes>(now.reserved_bytes[0].current) == driver.held_bytes(device));
        }
        check_snapshot(device, now);
    }

    HostDriver driver;
    std::unique_ptr<Allocator> allocator;
    std::map<Address, Block> blocks;  // live ones
    int mismatch_count = 0;

private:
    static unsigned char* memory(Address address) {
        return reinterpret_cast<unsigned char*>(address);
    }
    // Every so many bytes, and the last one: enough to meet any neighbour.
    template <class Visit>
    static void for_each_probe(Address address, Bytes bytes, Visit&& visit) {
        const Bytes step = bytes < 512 ? 1 : bytes / 512;
        for (Bytes at = 0; at < bytes; at += step) { visit(memory(address + at)); }
        visit(memory(address + bytes - 1));
    }
    void fill(Address address, const Block& block) {
        for_each_probe(address, block.bytes, [&](unsigned char* at) { *at = block.value; });
    }
    void check(Address address, const Block& block) {
        bool wrong = false;
        for_each_probe(address, block.bytes,
                       [&](const unsigned char* at) { wrong |= *at != block.value; });
        mismatch_count += wrong;
    }

    void make_wait(Stream waiting, Stream first, int device) {
        const Result<Event> event = driver.record(device, first);
        REQUIRE(static_cast<bool>(event));
        REQUIRE(driver.wait(waiting, *event).ok());
        driver.recycle(*event);
    }

    void check_apart(Address address, Bytes bytes) {
        const auto above = blocks.lower_bound(address);
        if (above != blocks.end()) { REQUIRE(address + bytes <= above->first); }
        if (above != blocks.begin()) {
            const auto& [below, block] = *std::prev(above);
            REQUIRE(below + block.bytes <= address);
        }
    }

    // Segments are apart and their blocks tile them; each live block lies in an Allocated one.
    void check_snapshot(int device, const DeviceStatistics& now) {
        std::map<Address, BlockInfo> tiles;
        Bytes total_bytes = 0;
        for (const SegmentInfo& segment : allocator->snapshot(device)) {
            REQUIRE(segment.device == device);
            Address at = segment.address;
            for (const BlockInfo& block : segment.blocks) {
                REQUIRE(block.address == at);
                at += block.bytes;
                REQUIRE(tiles.emplace(block.address, block).second);
            }
            REQUIRE(at == segment.address + segment.bytes);
            total_bytes += segment.bytes;
        }
        REQUIRE(total_bytes <= static_cast<Bytes>(now.reserved_bytes[0].current));
        Address end = 0;
        for (const auto& [address, block] : tiles) {
            REQUIRE(address >= end);
            end = address + block.bytes;
        }
        for (const auto& [address, block] : blocks) {
            if (block.device != device) { continue; }
            auto tile = tiles.upper_bound(address);
            REQUIRE(tile != tiles.begin());
            --tile;
            REQUIRE(tile->second.state == BlockState::Allocated);
            REQUIRE(address + block.bytes <= tile->first + tile->second.bytes);
        }
    }

    const Options options_;
    unsigned char next_value_ = 1;
};

}  // namespace gma
