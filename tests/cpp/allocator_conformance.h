// What every strategy must do, whatever its policy. A new one is one more call of
// check_allocator_conformance().
#pragma once

#include <doctest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>

#include "allocator_model.h"
#include "base/format.h"
#include "core/event_ring.h"

namespace gma {

class ConformanceOfAllocator {
public:
    explicit ConformanceOfAllocator(const Options& options) : options_(options) {
        config_.capacity_bytes = 256_MiB;
        config_.device_count = 2;
    }

    void contents() {
        AllocatorModel model(options_, config_);
        for (const Bytes bytes : {1_B, 511_B, 512_B, 513_B, 4000_B, 70_KiB, 1_MiB, 1_MiB + 1, 9_MiB,
                                  10_MiB, 12_MiB + 5, 33_MiB}) {
            model.allocate(bytes);
            model.allocate(bytes, stream_number(1));
        }
        model.driver.drain_all();
        model.finish();
    }

    void nothing() {
        AllocatorModel model(options_, config_);
        const Result<Address> none = model.allocator->allocate(0, 0, nullptr);
        REQUIRE(static_cast<bool>(none));
        CHECK(*none == 0);
        CHECK(model.allocator->free(0).ok());
        CHECK(model.allocator->record_stream(0, stream_number(1)).ok());
        CHECK(model.driver.held_bytes(0) == 0);
        model.check_books(0);
        model.finish();
    }

    void mistakes() {
        AllocatorModel model(options_, config_);
        for (const Bytes bytes : {100_B, 5_MiB}) {
            const Address kept = model.allocate(bytes);
            const Address freed = model.allocate(bytes);
            model.free(freed);
            for (const Address wrong : {freed, kept + 1, kept + bytes / 2, Address{4096},
                                        ~Address{0}, Address{1} << 47}) {
                CAPTURE(wrong - kept);
                check_refused(model.allocator->free(wrong), wrong);
                check_refused(model.allocator->record_stream(wrong, stream_number(1)), wrong);
                check_invalid(model.allocator->pin(wrong));
                CHECK_FALSE(static_cast<bool>(model.allocator->base_allocation(wrong)));
            }
            check_invalid(model.allocator->unpin(kept));
            model.check_books(0);
        }
        for (const int device : {-1, 2}) {
            check_invalid(model.allocator->allocate(device, 512, nullptr).status());
            check_invalid(model.allocator->trim(device).status());
        }
        for (const Bytes huge : {~Bytes{0}, ~Bytes{0} - 600, kMaxRequestBytes, 1_TiB}) {
            CAPTURE(huge);
            CHECK(model.allocator->allocate(0, huge, nullptr).status().code() == Code::OutOfMemory);
            CHECK(model.allocator->reserve(0, huge).code() == Code::OutOfMemory);
        }
        model.check_books(0);
        model.finish();
    }

    // The other stream is slow: until it is done nobody else gets the memory.
    // strict: its memory is unmapped before the free returns, so the host waits.
    void recorded_streams() {
        const bool waits = options_.isolation == "strict";
        for (const Bytes bytes : {300_B, 3_MiB}) {
            AllocatorModel model(options_, config_);
            const Stream other = stream_number(2);
            const Address address = model.allocate(bytes, stream_number(1));
            model.driver.drain_all();
            model.record(address, stream_number(1));  // its own stream: nothing to wait for
            model.record(address, other);
            model.record(address, other);
            model.launch_check(address, other);
            model.free(address);
            CHECK(model.statistics().active[0].current == (waits ? 0 : 1));
            check_refused(model.allocator->free(address), address);
            check_refused(model.allocator->record_stream(address, stream_number(3)), address);
            check_refused(model.allocator->free(address), address);
            for (int i = 0; i < 8; ++i) { model.allocate(bytes, stream_number(1)); }
            model.driver.drain(stream_number(1));
            CHECK((model.driver.queued_operations(other) > 0) != waits);
            model.driver.drain(other);
            model.allocate(3_MiB, stream_number(1));  // a large request asks for passed fences
            const DeviceStatistics after = model.statistics();
            CHECK(after.active[0].current == after.allocation[0].current);
            if (options_.strategy != "direct" && !waits) { CHECK(after.num_sync_all_streams == 0); }
            model.finish();
        }
    }

    void out_of_memory() {
        AllocatorModel model(options_, config_);
        std::vector<Address> held;
        for (Address address = model.allocate(20_MiB); address != 0;
             address = model.try_allocate(20_MiB)) {
            held.push_back(address);
        }
        CHECK(held.size() == 12);  // of 256 MiB
        const Status status = model.allocator->allocate(0, 20_MiB, nullptr).status();
        CHECK(status.message().find("20.00 MiB") != std::string::npos);
        CHECK(model.statistics().num_ooms == 2);
        model.allocate(10_MiB);  // smaller ones still fit
        model.free(held.front());
        model.driver.drain_all();
        model.allocate(20_MiB);
        CHECK(model.statistics().num_ooms == 2);
        model.finish();
    }

    // What is cached for one size or stream must not fail another.
    void cached_memory_serves_all() {
        shrink();
        AllocatorModel model(options_, config_);
        for (const Stream stream : {stream_number(1), stream_number(2), stream_number(3)}) {
            std::vector<Address> held;
            for (int i = 0; i < 23; ++i) {
                held.push_back(model.allocate(10_MiB / scale_, stream));
            }
            for (const Address address : held) { model.free(address); }
        }
        model.allocate(230_MiB / scale_, stream_number(4));
        CHECK(model.statistics().num_ooms == 0);
        model.finish();
    }

    void pending_memory_is_waited_for() {
        AllocatorModel model(options_, config_);
        const Address address = model.allocate(200_MiB, stream_number(1));
        model.record(address, stream_number(2));
        model.launch_check(address, stream_number(2));
        model.free(address);
        model.allocate(200_MiB, stream_number(1));
        CHECK(model.statistics().num_ooms == 0);
        model.finish();
    }

    void limits() {
        AllocatorModel model(options_, config_);
        CHECK(model.allocator->limit(0) == 256_MiB);
        REQUIRE(model.allocator->set_limit(0, 64_MiB).ok());
        CHECK(model.allocator->limit(0) == 64_MiB);
        const Address kept = model.allocate(40_MiB);
        CHECK(model.try_allocate(30_MiB) == 0);
        CHECK(model.reserved_bytes() <= 64_MiB);
        model.allocate(30_MiB, nullptr, 1);  // another device's is its own
        REQUIRE(model.allocator->set_limit(0, 100_MiB).ok());
        const Address second = model.allocate(30_MiB);
        REQUIRE(model.allocator->set_limit(0, 32_MiB).ok());  // below what is live
        CHECK(model.try_allocate(2_MiB) == 0);
        model.free(kept);
        model.free(second);
        REQUIRE(model.allocator->set_limit(0, 32_MiB).ok());  // what is idle goes at once
        CHECK(model.reserved_bytes() <= 32_MiB);
        model.allocate(20_MiB);
        CHECK(model.reserved_bytes() <= 32_MiB);
        model.finish();
    }

    void trimming() {
        AllocatorModel model(options_, config_);
        std::vector<Address> addresses;
        for (const Bytes bytes : {700_B, 40_KiB, 2_MiB, 21_MiB, 64_MiB}) {
            addresses.push_back(model.allocate(bytes, stream_number(1)));
            addresses.push_back(model.allocate(bytes, stream_number(2)));
        }
        for (std::size_t i = 1; i < addresses.size(); ++i) { model.free(addresses[i]); }
        const Bytes before = model.driver.held_bytes(0);
        const Result<Bytes> given = model.allocator->trim(0);
        REQUIRE(static_cast<bool>(given));
        model.check_books(0);
        CHECK(before - *given == model.driver.held_bytes(0));
        CHECK(model.driver.held_bytes(0) <= 20_MiB);  // one small block is left
        CHECK(*model.allocator->trim(0) == 0);
        model.finish();
    }

    void reserving() {
        AllocatorModel model(options_, config_);
        REQUIRE(model.allocator->reserve(0, 100_MiB).ok());
        model.check_books(0);
        CHECK(model.allocator->reserve(0, 300_MiB).code() == Code::OutOfMemory);
        model.allocate(100_MiB);
        model.finish();
    }

    void pools();
    void captures();
    void destroyed_streams();
    void pinning();
    void threads();
    void random_steps(std::uint32_t seed);
    void events();
    void failing_driver_calls();

private:
    static void check_invalid(const Status& status) {
        CHECK(status.code() == Code::InvalidValue);
        CHECK_FALSE(status.message().empty());
    }
    // What happened, and to which address; why; what to do.
    static void check_refused(const Status& status, Address address) {
        check_invalid(status);
        const std::string& text = status.message();
        CAPTURE(text);
        CHECK(std::count(text.begin(), text.end(), '\n') == 2);
        CHECK(text.substr(0, text.find('\n')).find(hex_text(address)) != std::string::npos);
    }
    void tolerant_script(AllocatorModel& model, bool& failed) const;
    // Freed memory is not handed out again where it was, unless a graph may use it.
    bool quarantines() const { return isolation_of(options_) >= Isolation::Tensor; }
    // For what is done hundreds of times: with isolation each byte is written, not only asked for.
    void shrink() {
        if (isolation_of(options_) == Isolation::Off) { return; }
        scale_ = 64;
        config_.capacity_bytes /= scale_;
        config_.page_bytes /= scale_;
    }

    Bytes scale_ = 1;
    Options options_;
    HostDriverConfig config_;
};

inline void ConformanceOfAllocator::pools() {
    AllocatorModel model(options_, config_);
    const PoolId pool{0, 7};
    const Stream stream = stream_number(1);
    const auto ours = [stream](Stream asked) { return asked == stream; };
    const Address before = model.allocate(3_MiB, stream);
    REQUIRE(model.allocator->begin_pool(0, pool, ours).ok());
    const Address inside = model.allocate(3_MiB, stream);
    const Address small = model.allocate(600, stream);
    model.free(model.allocate(3_MiB, stream_number(2)));  // the filter leaves it out
    model.free(inside);
    model.free(before);
    const Address again = model.allocate(3_MiB, stream);
    CHECK(again != before);
    CHECK((again == inside) != quarantines());  // the pool's own
    model.free(again);
    REQUIRE(model.allocator->end_pool(0, pool).ok());
    check_invalid(model.allocator->end_pool(0, pool));
    model.driver.drain_all();
    REQUIRE(static_cast<bool>(model.allocator->trim(0)));
    bool found = false;
    for (const SegmentInfo& segment : model.allocator->snapshot(0)) {
        found |= segment.pool == pool && inside >= segment.address &&
                 inside + 3_MiB <= segment.address + segment.bytes;
    }
    CHECK(found != quarantines());  // a graph may still use it
    CHECK((!quarantines() || !model.driver.mapping_at(inside)));
    for (int i = 0; i < 40; ++i) {
        const Address outside = model.allocate(1_MiB + 512, stream);
        CHECK((outside + 1_MiB + 512 <= inside || inside + 3_MiB <= outside));
    }
    REQUIRE(model.allocator->release_pool(0, pool).ok());
    model.check_books(0);
    model.free(small);
    model.finish();
}

inline void ConformanceOfAllocator::captures() {
    AllocatorModel model(options_, config_);
    const PoolId pool{1, 0};
    const Stream stream = stream_number(1);
    const Address outside = model.allocate(4_MiB, stream);
    model.record(outside, stream_number(2));
    const Address other = model.allocate(30_MiB, stream_number(3));
    model.driver.drain_all();
    REQUIRE(model.allocator->begin_pool(0, pool, [&](Stream s) { return s == stream; }).ok());
    model.driver.set_capturing(stream, true);
    for (int i = 0; i < 3; ++i) {
        model.free(model.allocate(2_MiB, stream));
        model.free(model.allocate(2000, stream));
    }
    model.allocate(5_MiB, stream);
    model.free(outside);
    model.free(other);
    REQUIRE(static_cast<bool>(model.allocator->trim(0)));
    model.allocate(6_MiB, stream_number(3));
    CHECK(model.driver.capture_violations() == 0);
    model.driver.set_capturing(stream, false);
    REQUIRE(model.allocator->end_pool(0, pool).ok());
    model.allocate(7_MiB, stream);
    REQUIRE(model.allocator->release_pool(0, pool).ok());
    model.finish();
}

// Its queued work goes on after the stream is gone, and its handle may name another one.
inline void ConformanceOfAllocator::destroyed_streams() {
    AllocatorModel model(options_, config_);
    const Stream stream = stream_number(1);
    const Address recorded = model.allocate(3_MiB, stream_number(2));
    for (const Bytes bytes : {800_B, 3_MiB, 40_MiB}) { model.free(model.allocate(bytes, stream)); }
    model.record(recorded, stream);
    model.launch_check(recorded, stream);
    model.driver.destroy_stream(stream);
    model.driver.reuse_stream(stream);
    model.free(recorded);
    for (const Bytes bytes : {800_B, 3_MiB, 40_MiB}) {
        model.allocate(bytes, stream);
        model.allocate(bytes, stream_number(2));
    }
    model.driver.drain(stream);
    model.finish();
}

inline void ConformanceOfAllocator::pinning() {
    AllocatorModel model(options_, config_);
    const Stream stream = stream_number(1);
    for (const Bytes bytes : {900_B, 3_MiB}) {
        const Address address = model.allocate(bytes, stream);
        REQUIRE(model.allocator->pin(address).ok());
        REQUIRE(model.allocator->pin(address).ok());
        const Result<BaseAllocation> base = model.allocator->base_allocation(address);
        REQUIRE(static_cast<bool>(base));
        CHECK(base->address <= address);
        CHECK(address + bytes <= base->address + base->bytes);
        REQUIRE(model.allocator->unpin(address).ok());
        REQUIRE(static_cast<bool>(model.allocator->trim(0)));
        REQUIRE(model.allocator->unpin(address).ok());
        check_invalid(model.allocator->unpin(address));
        REQUIRE(model.allocator->pin(address).ok());
        model.free(address);
        REQUIRE(static_cast<bool>(model.allocator->trim(0)));
        REQUIRE(model.allocator->unpin(address).ok());  // its slab has gone meanwhile
        check_invalid(model.allocator->unpin(address));
    }
    model.finish();
}

// Each thread writes from the host; blocks also go to other threads to be freed there.
inline void ConformanceOfAllocator::threads() {
    HostDriver driver(config_);
    Result<std::unique_ptr<Allocator>> made = Allocator::create(driver, options_);
    REQUIRE(static_cast<bool>(made));
    Allocator& allocator = **made;
    std::atomic<int> problem_count{0};
    std::string problem;  // the first one's text
    std::atomic<Address> handed_over{0};
    const auto work = [&](unsigned number) {
        std::mt19937 random(number);
        const Stream stream = stream_number(number % 3);
        for (int i = 0; i < 300; ++i) {
            const Bytes bytes = random() % 4 == 0 ? 1_MiB + random() % 2_MiB : 1 + random() % 9000;
            const Result<Address> address = allocator.allocate(0, bytes, stream);
            if (!address || *address == 0) {
                if (problem_count++ == 0) { problem = address.status().message(); }
                continue;
            }
            driver.drain(stream);  // with isolation, fresh memory is filled in its order
            auto* memory = reinterpret_cast<unsigned char*>(*address);
            std::memset(memory, static_cast<int>(number), bytes);
            if (random() % 8 == 0) { std::this_thread::yield(); }
            problem_count += memory[0] != number || memory[bytes - 1] != number;
            problem_count += !allocator.free(handed_over.exchange(*address)).ok();
        }
    };
    std::vector<std::thread> threads;
    for (unsigned number = 1; number <= 4; ++number) { threads.emplace_back(work, number); }
    for (std::thread& thread : threads) { thread.join(); }
    CHECK(allocator.free(handed_over).ok());
    CHECK_MESSAGE(problem_count == 0, problem);
    const Status audit = allocator.audit();
    CHECK_MESSAGE(audit.ok(), audit.message());
    const DeviceStatistics statistics = allocator.statistics(0);
    CHECK(statistics.allocation[0].current == 0);
    CHECK(statistics.allocation[0].allocated == 4 * 300);
    CHECK(statistics.active_bytes[0].current == 0);
    CHECK(static_cast<bool>(allocator.trim(0)));
    CHECK(driver.held_bytes(0) == 0);
}

// A host that runs ahead of three streams on two devices.
inline void ConformanceOfAllocator::random_steps(std::uint32_t seed) {
    shrink();
    AllocatorModel model(options_, config_);
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t count) { return random() % count; };
    const auto size = [&]() -> Bytes {
        const Bytes most = std::max(Bytes{16}, (Bytes{1} << (4 + pick(22))) / scale_);
        return 1 + random() % most;
    };
    const auto any_block = [&] {
        const std::size_t index = pick(model.blocks.size());
        return std::next(model.blocks.begin(), static_cast<std::ptrdiff_t>(index));
    };
    for (int step = 0; step < 400; ++step) {
        const std::size_t device_index = pick(2);
        const auto device = static_cast<int>(device_index);
        const std::size_t number = pick(3);  // a stream is one device's, save the default one
        const Stream stream = stream_number(number == 0 ? 0 : number + 8 * device_index);
        const std::size_t choice = pick(20);
        if (choice < 9) {
            model.try_allocate(size(), stream, device);
        } else if (choice < 15 && !model.blocks.empty()) {
            model.free(any_block()->first);
        } else if (choice < 17 && !model.blocks.empty()) {
            const auto block = any_block();
            if (block->second.device == device) {
                model.record(block->first, stream);
                model.launch_check(block->first, stream);
            }
        } else if (choice < 19) {
            model.driver.advance(stream, pick(20), device);
        } else {
            REQUIRE(static_cast<bool>(model.allocator->trim(device, size())));
        }
    }
    model.finish();
}

inline void ConformanceOfAllocator::events() {
    options_.event_ring_entries = 100;
    AllocatorModel model(options_, config_);
    const Stream other = stream_number(2);
    std::vector<Action> expected;
    for (const Bytes bytes : {400_B, 3_MiB}) {
        const Address plain = model.allocate(bytes, stream_number(1));
        const Address recorded = model.allocate(bytes);
        model.record(recorded, other);
        model.free(plain);
        model.free(recorded);
        check_invalid(model.allocator->free(plain));
        model.driver.drain_all();
        model.allocate(4_MiB);
        expected.insert(expected.end(),
                        {Action::Alloc, Action::Alloc, Action::RecordStream, Action::Free,
                         Action::FreeRequested, Action::FreeCompleted, Action::Alloc});
        const EventRing::Events events = model.allocator->events().read();
        REQUIRE(events.records.size() == expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            CHECK(events.records[i].action == expected[i]);
        }
        const TraceRecord* last = &events.records[expected.size() - 7];
        CHECK(last[0].address == plain);
        CHECK(last[0].bytes == bytes);
        CHECK(last[0].stream == reinterpret_cast<std::uintptr_t>(stream_number(1)));
        CHECK(last[2].stream == reinterpret_cast<std::uintptr_t>(other));
        CHECK(last[3].address == plain);
        CHECK(last[3].bytes == bytes);
        CHECK(last[4].address == recorded);
        CHECK(last[5].address == recorded);
    }
    CHECK(model.try_allocate(300_MiB) == 0);
    CHECK(model.allocator->events().read().records.back().action == Action::Oom);
    model.finish();
    CHECK(model.allocator->events().read().records.back().action == Action::EmptyCache);
}

// Some of everything; calls may fail, but only with a status.
inline void ConformanceOfAllocator::tolerant_script(AllocatorModel& model, bool& failed) const {
    const auto note = [&failed](const Status& status) { failed |= !status.ok(); };
    Allocator& allocator = *model.allocator;
    std::vector<Address> held;
    const auto allocate = [&](Bytes bytes, Stream stream) {
        const Result<Address> address = allocator.allocate(0, bytes / scale_, stream);
        note(address.status());
        held.push_back(address ? *address : 0);
        return held.back();
    };
    for (const Stream stream : {stream_number(1), stream_number(2)}) {
        for (const Bytes bytes : {600_B, 3_MiB, 40_MiB, 80_MiB}) { allocate(bytes, stream); }
        note(allocator.record_stream(held.back(), stream_number(3)));
        note(allocator.free(std::exchange(held[held.size() - 2], 0)));
        note(allocator.free(std::exchange(held.back(), 0)));
    }
    const PoolId pool{0, 3};
    note(allocator.begin_pool(0, pool, [](Stream) { return true; }));
    const Address in_pool = allocate(5_MiB, stream_number(1));
    note(allocator.free(in_pool));
    held.pop_back();
    note(allocator.end_pool(0, pool));
    note(allocator.release_pool(0, pool));
    allocate(150_MiB, stream_number(2));
    allocate(60_MiB, stream_number(1));
    note(allocator.trim(0).status());
    for (const Address address : held) { note(allocator.free(address)); }
    note(allocator.trim(0).status());
}

inline void ConformanceOfAllocator::failing_driver_calls() {
    config_.device_count = 1;
    shrink();
    std::uint64_t call_count = 0;
    {
        AllocatorModel model(options_, config_);
        bool failed = false;
        const std::uint64_t before = model.driver.fallible_calls();
        tolerant_script(model, failed);
        CHECK_FALSE(failed);
        call_count = model.driver.fallible_calls() - before;
    }
    for (std::uint64_t k = 1; k <= call_count; ++k) {
        CAPTURE(k);
        AllocatorModel model(options_, config_);
        model.driver.fail_call(k);
        bool failed = false;
        tolerant_script(model, failed);
        model.driver.clear_faults();
        model.driver.drain_all();
        const Status audit = model.allocator->audit();
        REQUIRE_MESSAGE(audit.ok(), audit.message());
        CHECK(model.statistics().allocation[0].current == 0);
        const Result<Bytes> given = model.allocator->trim(0);
        REQUIRE_MESSAGE(given, given.status().message());
        CHECK(model.reserved_bytes() == 0);
        CHECK((model.driver.held_bytes(0) == 0 || model.statistics().leaked_handles > 0));
    }
}

inline void check_allocator_conformance(const Options& options) {
    const auto check = [&options] { return ConformanceOfAllocator(options); };
    SUBCASE("contents") { check().contents(); }
    SUBCASE("nothing") { check().nothing(); }
    SUBCASE("mistakes") { check().mistakes(); }
    SUBCASE("recorded streams") { check().recorded_streams(); }
    SUBCASE("out of memory") { check().out_of_memory(); }
    SUBCASE("cached memory serves all") { check().cached_memory_serves_all(); }
    SUBCASE("pending memory is waited for") { check().pending_memory_is_waited_for(); }
    SUBCASE("limits") { check().limits(); }
    SUBCASE("trimming") { check().trimming(); }
    SUBCASE("reserving") { check().reserving(); }
    SUBCASE("pools") { check().pools(); }
    SUBCASE("captures") { check().captures(); }
    SUBCASE("destroyed streams") { check().destroyed_streams(); }
    SUBCASE("pinning") { check().pinning(); }
    SUBCASE("threads") { check().threads(); }
    for (const std::uint32_t seed : {1U, 2U, 3U}) {
        SUBCASE("random steps") { check().random_steps(seed); }
    }
    SUBCASE("events") { check().events(); }
    SUBCASE("failing driver calls") { check().failing_driver_calls(); }
}

}  // namespace gma
