#include "core/event_ring.h"

#include <doctest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace gma {
namespace {

TraceRecord event(Address address, Bytes bytes = 512) {
    TraceRecord record;
    record.address = address;
    record.bytes = bytes;
    return record;
}

}  // namespace

TEST_CASE("a ring that was never started holds nothing and takes nothing") {
    EventRing ring;
    CHECK_FALSE(ring.on());
    ring.add(event(1));
    CHECK(ring.read().records.empty());
    CHECK_FALSE(ring.read().wrapped);
    ring.clear();
    ring.stop();
}

TEST_CASE("events come back oldest first, with times that do not fall") {
    EventRing ring;
    REQUIRE(ring.start(16).ok());
    CHECK(ring.on());
    for (Address i = 1; i <= 10; ++i) { ring.add(event(i)); }
    const EventRing::Events events = ring.read();
    REQUIRE(events.records.size() == 10);
    CHECK_FALSE(events.wrapped);
    for (std::size_t i = 0; i < 10; ++i) {
        CHECK(events.records[i].address == i + 1);
        CHECK(events.records[i].thread == events.records[0].thread);
        if (i > 0) { CHECK(events.records[i].time_ns >= events.records[i - 1].time_ns); }
    }
}

TEST_CASE("a full ring keeps the newest and says so") {
    EventRing ring;
    REQUIRE(ring.start(7).ok());
    for (Address i = 1; i <= 7; ++i) { ring.add(event(i)); }
    CHECK_FALSE(ring.read().wrapped);
    for (Address i = 8; i <= 20; ++i) { ring.add(event(i)); }
    const EventRing::Events events = ring.read();
    CHECK(events.wrapped);
    REQUIRE(events.records.size() == 7);
    CHECK(events.records.front().address == 14);
    CHECK(events.records.back().address == 20);
}

TEST_CASE("stop keeps events, clear and start forget them") {
    EventRing ring;
    REQUIRE(ring.start(4).ok());
    ring.add(event(1));
    ring.stop();
    ring.add(event(2));
    CHECK(ring.read().records.size() == 1);
    ring.clear();
    CHECK(ring.read().records.empty());
    REQUIRE(ring.start(4).ok());
    for (Address i = 3; i < 9; ++i) { ring.add(event(i)); }
    CHECK(ring.read().wrapped);
    ring.clear();
    CHECK_FALSE(ring.read().wrapped);
    ring.add(event(9));
    REQUIRE(ring.read().records.size() == 1);
    CHECK(ring.read().records[0].address == 9);
    REQUIRE(ring.start(8).ok());
    CHECK(ring.read().records.empty());
}

TEST_CASE("no ring of no entries, nor one that no memory holds") {
    EventRing ring;
    CHECK(ring.start(0).code() == Code::InvalidValue);
    CHECK(ring.start(1ULL << 46).code() == Code::OutOfMemory);
    CHECK_FALSE(ring.on());
}

// All fields of a record carry the same number, so that a torn one is seen.
TEST_CASE("threads write while another reads: nothing torn, nothing lost, each thread in order") {
    constexpr std::uint32_t kThreads = 4;
    constexpr std::uint32_t kEvents = 20000;
    const auto whole = [](const TraceRecord& record) {
        return record.bytes == record.address && record.stream == record.address &&
               record.pool_second == static_cast<std::uint32_t>(record.address);
    };
    for (const std::uint64_t capacity : {1ULL, 64ULL, 1ULL * kThreads * kEvents}) {
        EventRing ring;
        REQUIRE(ring.start(capacity).ok());
        std::atomic<bool> done{false};
        std::uint64_t torn_count = 0;
        std::thread reader([&] {
            while (!done) {
                for (const TraceRecord& record : ring.read().records) {
                    torn_count += !whole(record);
                }
            }
        });
        std::vector<std::thread> writers;
        for (std::uint32_t thread = 0; thread < kThreads; ++thread) {
            writers.emplace_back([&ring, thread] {
                for (std::uint64_t i = 1; i <= kEvents; ++i) {
                    TraceRecord record = event(thread * std::uint64_t{kEvents} + i);
                    record.bytes = record.stream = record.address;
                    record.pool_second = static_cast<std::uint32_t>(record.address);
                    ring.add(record);
                }
            });
        }
        for (std::thread& writer : writers) { writer.join(); }
        done = true;
        reader.join();
        CHECK(torn_count == 0);
        const EventRing::Events events = ring.read();
        CHECK(events.records.size() == capacity);
        CHECK(events.wrapped == (capacity < kThreads * kEvents));
        std::array<std::uint64_t, kThreads> last{};
        for (const TraceRecord& record : events.records) {
            REQUIRE(whole(record));
            std::uint64_t& of_thread = last[(record.address - 1) / kEvents];
            CHECK(record.address > of_thread);
            of_thread = record.address;
        }
    }
}

TEST_CASE("a file is a header and the records") {
    EventRing ring;
    REQUIRE(ring.start(2).ok());
    for (Address i = 1; i <= 3; ++i) { ring.add(event(i, i * 512)); }
    const std::string path = "test_event_ring.gma";
    REQUIRE(ring.write_file(path).ok());
    std::ifstream file(path, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    std::remove(path.c_str());
    REQUIRE(text.size() == sizeof(TraceHeader) + 2 * sizeof(TraceRecord));
    TraceHeader header;
    std::memcpy(&header, text.data(), sizeof(header));
    CHECK(header.magic == kTraceMagic);
    CHECK(header.version == kTraceVersion);
    CHECK(header.record_bytes == 48);
    CHECK(header.count == 2);
    CHECK(header.flags == (kTraceHasTimes | kTraceWrapped));
    TraceRecord record;
    std::memcpy(&record, text.data() + sizeof(header), sizeof(record));
    CHECK(record.address == 2);
    CHECK(record.bytes == 1024);
    CHECK(ring.write_file("no/such/folder/x").code() == Code::InvalidValue);
}

}  // namespace gma
