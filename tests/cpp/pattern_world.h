// An allocator over the host driver whose blocks carry patterns: kernels on streams write and check
// them when the test advances the streams, never when the host asks. Memory that is reused, moved
// or unmapped too early shows as a mismatch or as a fault.
//
// Leaner than allocator_model.h: nothing is recounted unless asked, and driver calls may fail.
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

inline Options options_from(const std::string& text) {
    Result<Options> options = parse_options(text);
    REQUIRE_MESSAGE(options, options.status().message());
    return *options;
}

inline Stream stream_at(std::uintptr_t number) {
    return number == 0 ? nullptr : reinterpret_cast<Stream>(number << 12);
}

class PatternWorld {
public:
    static constexpr Bytes kPage = 64_KiB;

    struct Block {
        Bytes bytes = 0;
        Stream stream = nullptr;
        int device = 0;
        std::uint64_t pattern = 0;
    };

    static HostDriverConfig small_card(Bytes capacity_bytes, Bytes page_bytes = kPage) {
        HostDriverConfig config;
        config.capacity_bytes = capacity_bytes;
        config.page_bytes = page_bytes;
        return config;
    }

    explicit PatternWorld(const std::string& options, const HostDriverConfig& config = {})
        : driver(config) {
        Result<std::unique_ptr<Allocator>> made = Allocator::create(driver, options_from(options));
        REQUIRE_MESSAGE(made, made.status().message());
        allocator = std::move(*made);
    }

    // Address 0 and the reason in `last` when it fails.
    Address allocate(Bytes bytes, Stream stream = nullptr, int device = 0) {
        Result<Address> address = allocator->allocate(device, bytes, stream);
        last = address.status();
        if (!address) { return 0; }
        REQUIRE(*address != 0);
        adopt(*address, {bytes, stream, device, ++next_pattern_ * 0x9e3779b97f4a7c15ULL});
        return *address;
    }
    // The block's last use on its own stream is a check, queued before the free.
    Status free(Address address) {
        const auto it = blocks.find(address);
        if (it == blocks.end()) { return allocator->free(address); }
        launch_check(address, it->second.stream);
        blocks.erase(it);
        return last = allocator->free(address);
    }
    Status record(Address address, Stream stream) {
        last = allocator->record_stream(address, stream);
        if (last.ok()) { launch_check(address, stream); }
        return last;
    }
    // A block that was had otherwise: not over another one, and filled with its pattern.
    void adopt(Address address, const Block& block) {
        const auto above = blocks.lower_bound(address);
        if (above != blocks.end()) { REQUIRE(address + block.bytes <= above->first); }
        if (above != blocks.begin()) {
            const auto& [below, other] = *std::prev(above);
            REQUIRE(below + other.bytes <= address);
        }
        blocks.emplace(address, block);
        driver.launch(
            block.stream, [this, address, block] { write(address, block); }, block.device);
    }
    void launch_check(Address address, Stream stream) {
        const Block block = blocks.at(address);
        driver.launch(stream, [this, address, block] { check(address, block); }, block.device);
    }
    // A kernel that writes what the block's checks do not expect.
    void launch_stray_write(Address address, Stream stream) {
        const Block block = blocks.at(address);
        driver.launch(
            stream,
            [this, address, block] { write(address, {block.bytes, {}, 0, ~block.pattern}); },
            block.device);
    }
    void free_all() {
        while (!blocks.empty()) {
            const Status status = free(blocks.begin()->first);
            REQUIRE_MESSAGE(status.ok(), status.message());
        }
    }

    void check_audit() {
        const Status status = allocator->audit();
        REQUIRE_MESSAGE(status.ok(), status.message());
    }
    DeviceStatistics statistics(int device = 0) { return allocator->statistics(device); }
    Bytes reserved_bytes(int device = 0) {
        return static_cast<Bytes>(statistics(device).reserved_bytes[0].current);
    }
    // Everything freed, drained, trimmed and destroyed: what is left are handles (or segments)
    // whose own release was refused, and they are counted.
    void check_nothing_left() {
        free_all();
        driver.drain_all();
        std::int64_t leaked_count = 0;
        for (int device = 0; device < driver.device_count(); ++device) {
            const Result<Bytes> given = allocator->trim(device);
            CHECK_MESSAGE(given, given.status().message());
            check_audit();
            const DeviceStatistics now = statistics(device);
            CHECK(now.allocation[0].current == 0);
            CHECK(now.active[0].current == 0);
            CHECK(now.active_bytes[0].current == 0);
            CHECK(now.reserved_bytes[0].current == 0);
            leaked_count += now.leaked_handles;
        }
        allocator.reset();
        CHECK(driver.live_handles() + driver.segments().size() ==
              static_cast<std::size_t>(leaked_count));
        CHECK(driver.mapped_ranges().empty());
        CHECK(driver.reserved_ranges().empty());
        CHECK(driver.outstanding_events() == 0);
        CHECK(driver.capture_violations() == 0);
        CHECK(mismatch_count == 0);
    }

    HostDriver driver;
    std::unique_ptr<Allocator> allocator;
    std::map<Address, Block> blocks;  // live ones
    Status last;
    int mismatch_count = 0;
    int check_count = 0;        // checks that ran
    Bytes probe_bytes = 2_KiB;  // from one word of a pattern to the next

private:
    // Each word is its place's own, so that memory of another place is seen too.
    template <class Visit>
    void for_each_word(Address address, const Block& block, Visit&& visit) const {
        constexpr Bytes kWord = sizeof(std::uint64_t);
        if (block.bytes < kWord) { return; }
        for (Bytes at = 0; at + kWord <= block.bytes; at += probe_bytes) {
            visit(reinterpret_cast<void*>(address + at), block.pattern + at);
        }
        const Bytes end = round_down(block.bytes - kWord, kWord);  // no word overlaps another
        visit(reinterpret_cast<void*>(address + end), block.pattern + end);
    }
    void write(Address address, const Block& block) const {
        for_each_word(address, block,
                      [](void* at, std::uint64_t word) { std::memcpy(at, &word, sizeof(word)); });
    }
    void check(Address address, const Block& block) {
        bool wrong = false;
        for_each_word(address, block, [&](const void* at, std::uint64_t word) {
            wrong |= std::memcmp(at, &word, sizeof(word)) != 0;
        });
        mismatch_count += wrong;
        ++check_count;
    }

    std::uint64_t next_pattern_ = 0;
};

}  // namespace gma
