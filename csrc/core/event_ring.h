// The last so many events at the allocator's door, for traces and recordings.
//
// Off, it costs its users one relaxed load. On, writers meet only in one counter: each takes a
// ticket, and writes the slot that the ticket names under the slot's own sequence number
//   sequence == 0: never used,  2 * ticket + 1: being written,  2 * ticket + 2: holds the ticket's
//   event
// so that a reader knows a torn record and leaves it out. Tickets are taken in the order in which
// memory changes hands, since a free is noted before it is done and an allocation after.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trace_record.h"
#include "core/lazy_array.h"
#include "core/tick_clock.h"

namespace gma {

class EventRing {
public:
    EventRing() = default;
    EventRing(const EventRing&) = delete;
    EventRing& operator=(const EventRing&) = delete;

    bool on() const { return active_.load(std::memory_order_relaxed) != nullptr; }
    // Forgets what was noted before. Memory is used as events come.
    Status start(std::uint64_t capacity_count);
    void stop();  // what was noted stays readable
    void clear();

    // Fills in the time and the thread. Nothing happens when the ring is off.
    void add(TraceRecord record);

    struct Events {
        std::vector<TraceRecord> records;  // oldest first
        bool wrapped = false;              // older ones are lost
    };
    Events read() const;
    // The format of base/trace_record.h.
    Status write_file(const std::string& path) const;

private:
    static constexpr std::size_t kWordCount = sizeof(TraceRecord) / sizeof(std::uint64_t);
    using Words = std::array<std::uint64_t, kWordCount>;
    struct Slot {
        std::uint64_t sequence;
        Words words;
    };
    struct Buffer {
        explicit Buffer(std::uint64_t count) : capacity_count(count), slots(count) {}

        const std::uint64_t capacity_count;
        mutable LazyArray<Slot> slots;
        TickReading started;
        std::atomic<std::uint64_t> next_ticket{0};
        std::atomic<std::uint64_t> first_ticket{0};  // older ones were cleared
    };

    mutable std::mutex lock_;  // of start, stop, clear and read; not of add
    std::atomic<Buffer*> active_{nullptr};
    // Never freed before the ring: a writer may still be in one.
    std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace gma
