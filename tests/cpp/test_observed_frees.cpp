// Frees that somebody observes: told once, as describe() has the block, before anybody else can
// have its memory; and not at all where the free is refused.
#include <atomic>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/event_ring.h"
#include "pattern_world.h"

namespace gma {
namespace {

constexpr const char* kKinds[] = {"strategy:paged",   "strategy:split",   "strategy:direct",
                                  "isolation:packed", "isolation:tensor", "isolation:strict"};

class Heard final : public EventSink {
public:
    void note(const TraceRecord& record) noexcept override { records.push_back(record); }
    std::vector<TraceRecord> records;
};

// Time and thread are the ring's to fill in.
bool same(const TraceRecord& a, const TraceRecord& b) {
    return a.address == b.address && a.bytes == b.bytes && a.stream == b.stream &&
           a.pool_first == b.pool_first && a.pool_second == b.pool_second && a.device == b.device &&
           a.action == b.action;
}

// Says which addresses are live, as a reader of the events would have it.
class Reader final : public EventSink {
public:
    void note(const TraceRecord& block) noexcept override {
        const std::lock_guard guard(lock_);
        wrong_count_ += live_.erase(block.address) != 1;
    }
    void note_allocation(Address address) {
        const std::lock_guard guard(lock_);
        wrong_count_ += !live_.insert(address).second;
    }
    int wrong_count() const { return wrong_count_; }

private:
    std::mutex lock_;
    std::set<Address> live_;
    int wrong_count_ = 0;
};

// Two threads that each free what the other one has allocated.
void hand_over(const char* options, Bytes bytes) {
    PatternWorld world(options, PatternWorld::small_card(64_MiB));
    Reader reader;
    std::atomic<Address> places[4] = {};
    std::atomic<int> refused_count{0};
    const auto work = [&] {
        for (int i = 0; i < (GMA_SANITIZED ? 500 : 5000); ++i) {
            const Result<Address> address = world.allocator->allocate(0, bytes, nullptr);
            if (!address) {
                ++refused_count;
                continue;
            }
            reader.note_allocation(*address);
            const Address other = places[i % 4].exchange(*address);
            if (other == 0) { continue; }
            refused_count += !world.allocator->free_observed(other, reader).ok();
        }
    };
    std::thread one(work);
    std::thread two(work);
    one.join();
    two.join();
    for (const Address address : places) {
        CHECK(world.allocator->free_observed(address, reader).ok());
    }
    CHECK(refused_count == 0);
    CHECK(reader.wrong_count() == 0);
}

}  // namespace

TEST_CASE("the free of an address is told before its next allocation, whoever makes it") {
    for (const char* options : {"strategy:paged", "strategy:split", "isolation:packed"}) {
        CAPTURE(options);
        hand_over(options, 600);
        hand_over(options, 3_MiB);
    }
}

TEST_CASE("what is told of a free is what describe() says before it") {
    for (const char* options : kKinds) {
        CAPTURE(options);
        PatternWorld world(options, PatternWorld::small_card(64_MiB));
        for (const Bytes bytes : {Bytes{600}, 3_MiB - 100, 3_MiB, 40_KiB}) {
            const Address address = *world.allocator->allocate(0, bytes, stream_at(1));
            const auto described = world.allocator->describe(address);
            Heard heard;
            REQUIRE(world.allocator->free_observed(address, heard).ok());
            REQUIRE(heard.records.size() == 1);
            CHECK(same(heard.records[0], *described));
            CHECK(heard.records[0].bytes == bytes);
            CHECK(heard.records[0].action == Action::Free);
            CHECK_FALSE(world.allocator->free_observed(address, heard).ok());
            CHECK_FALSE(world.allocator->free_observed(address + 64, heard).ok());
            CHECK(heard.records.size() == 1);
        }
        Heard heard;
        CHECK_FALSE(world.allocator->free_observed(0x1234'5678, heard).ok());
        CHECK(world.allocator->free_observed(0, heard).ok());
        CHECK(heard.records.empty());
        world.check_audit();
    }
}

TEST_CASE("a free that has to wait is told as requested, and its end comes later") {
    for (const char* options : {"strategy:paged", "strategy:split", "isolation:packed"}) {
        CAPTURE(options);
        PatternWorld world(options, PatternWorld::small_card(64_MiB));
        for (const Bytes bytes : {Bytes{600}, 3_MiB}) {
            Heard heard;
            world.allocator->set_event_sink(&heard);
            const Address address = *world.allocator->allocate(0, bytes, stream_at(1));
            REQUIRE(world.allocator->record_stream(address, stream_at(2)).ok());
            heard.records.clear();  // segments
            REQUIRE(world.allocator->free_observed(address, heard).ok());
            world.driver.drain(stream_at(2));
            static_cast<void>(*world.allocator->allocate(0, 3_MiB, stream_at(1)));
            std::vector<TraceRecord> told;
            for (const TraceRecord& record : heard.records) {
                if (record.address == address) { told.push_back(record); }
            }
            REQUIRE(told.size() >= 2);
            CHECK(told[0].action == Action::FreeRequested);
            CHECK(told[0].bytes == bytes);
            CHECK(told[1].action == Action::FreeCompleted);
            told[1].action = Action::FreeRequested;
            CHECK(same(told[0], told[1]));
            world.allocator->set_event_sink(nullptr);
        }
    }
}

// Under `packed` every small object's free comes by the list of those that wait, and while a graph
// may be captured it stays there, though no stream has used the object.
TEST_CASE("a free ends once, also of an object that nobody recorded, while a graph is captured") {
    for (const char* options : {"strategy:paged", "isolation:packed", "isolation:tensor"}) {
        CAPTURE(options);
        PatternWorld world(options, PatternWorld::small_card(64_MiB));
        for (const Bytes bytes : {Bytes{600}, 3_MiB}) {
            CAPTURE(bytes);
            Heard heard;
            const Address address = *world.allocator->allocate(0, bytes, stream_at(1));
            world.allocator->set_event_sink(&heard);
            world.allocator->begin_capture(0);
            const auto described = world.allocator->describe(address);
            REQUIRE(world.allocator->free_observed(address, heard).ok());
            world.allocator->end_capture(0);
            world.driver.drain(stream_at(1));
            static_cast<void>(*world.allocator->allocate(0, 5_MiB, stream_at(1)));
            world.allocator->set_event_sink(nullptr);
            int request_count = 0;
            int end_count = 0;
            for (const TraceRecord& record : heard.records) {
                if (record.address != address) { continue; }
                if (record.action == Action::Free || record.action == Action::FreeRequested) {
                    ++request_count;
                    CHECK(record.action == described->action);
                }
                end_count +=
                    record.action == Action::Free || record.action == Action::FreeCompleted;
            }
            CHECK(request_count == 1);
            CHECK(end_count == 1);
        }
    }
}

TEST_CASE("the ring and an observer are told of the same free") {
    for (const Bytes bytes : {Bytes{600}, 3_MiB}) {
        PatternWorld world("strategy:paged", PatternWorld::small_card(64_MiB));
        REQUIRE(world.allocator->events().start(16).ok());
        const Address observed = *world.allocator->allocate(0, bytes, nullptr);
        const Address plain = *world.allocator->allocate(0, bytes, nullptr);
        world.allocator->events().clear();
        Heard heard;
        REQUIRE(world.allocator->free_observed(observed, heard).ok());
        REQUIRE(world.allocator->free(plain).ok());
        CHECK_FALSE(world.allocator->free(plain).ok());
        const auto events = world.allocator->events().read().records;
        REQUIRE(heard.records.size() == 1);
        REQUIRE(events.size() == 2);
        CHECK(same(events[0], heard.records[0]));
        CHECK(events[1].address == plain);
        CHECK(events[1].bytes == bytes);
    }
}

}  // namespace gma
