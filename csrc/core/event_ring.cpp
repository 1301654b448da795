#include "core/event_ring.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

namespace gma {
namespace {

// Small numbers in the order of the threads' first events.
std::uint32_t thread_number() {
    static std::atomic<std::uint32_t> last{0};
    thread_local const std::uint32_t number = last.fetch_add(1, std::memory_order_relaxed);
    return number;
}

}  // namespace

Status EventRing::start(std::uint64_t capacity_count) {
    const std::lock_guard guard(lock_);
    if (capacity_count == 0) {
        return {Code::InvalidValue, "an event ring has at least one entry"};
    }
    if (buffers_.empty() || buffers_.back()->capacity_count != capacity_count) {
        auto buffer = std::make_unique<Buffer>(capacity_count);
        if (!buffer->slots.valid()) {
            return {Code::OutOfMemory, "no host memory for an event ring of " +
                                           std::to_string(capacity_count) + " entries"};
        }
        buffers_.push_back(std::move(buffer));
    }
    Buffer* buffer = buffers_.back().get();
    buffer->first_ticket = buffer->next_ticket.load();
    buffer->started = TickReading::now();
    active_.store(buffer, std::memory_order_release);
    return {};
}

void EventRing::stop() {
    const std::lock_guard guard(lock_);
    active_.store(nullptr, std::memory_order_release);
}

void EventRing::clear() {
    const std::lock_guard guard(lock_);
    if (buffers_.empty()) { return; }
    buffers_.back()->first_ticket = buffers_.back()->next_ticket.load();
}

void EventRing::add(TraceRecord record) {
    Buffer* buffer = active_.load(std::memory_order_acquire);
    if (buffer == nullptr) { return; }
    const std::uint64_t ticket = buffer->next_ticket.fetch_add(1, std::memory_order_relaxed);
    record.time_ns = ticks();  // until it is read
    record.thread = thread_number();
    Slot& slot = buffer->slots[ticket % buffer->capacity_count];
    std::atomic_ref sequence(slot.sequence);
    std::uint64_t seen = sequence.load(std::memory_order_relaxed);
    do {
        while ((seen & 1) != 0) {  // a writer a whole ring behind us is still at it
            std::this_thread::yield();
            seen = sequence.load(std::memory_order_relaxed);
        }
        if (seen > 2 * ticket) { return; }  // a newer event has the slot already
    } while (!sequence.compare_exchange_weak(seen, 2 * ticket + 1, std::memory_order_acq_rel,
                                             std::memory_order_relaxed));
    // Release, and acquire in read(): who sees any of these words also sees the odd number.
    const auto words = std::bit_cast<Words>(record);
    for (std::size_t i = 0; i < kWordCount; ++i) {
        std::atomic_ref(slot.words[i]).store(words[i], std::memory_order_release);
    }
    sequence.store(2 * ticket + 2, std::memory_order_release);
}

EventRing::Events EventRing::read() const {
    const std::lock_guard guard(lock_);
    Events events;
    if (buffers_.empty()) { return events; }
    const Buffer& buffer = *buffers_.back();
    const std::uint64_t end = buffer.next_ticket.load(std::memory_order_acquire);
    const TickReading now = TickReading::now();
    std::uint64_t begin = buffer.first_ticket;
    events.wrapped = end - begin > buffer.capacity_count;
    begin = std::max(begin, end - std::min(end, buffer.capacity_count));
    events.records.reserve(end - begin);
    for (std::uint64_t ticket = begin; ticket < end; ++ticket) {
        Slot& slot = buffer.slots[ticket % buffer.capacity_count];
        std::atomic_ref sequence(slot.sequence);
        if (sequence.load(std::memory_order_acquire) != 2 * ticket + 2) { continue; }
        Words words{};
        for (std::size_t i = 0; i < kWordCount; ++i) {
            words[i] = std::atomic_ref(slot.words[i]).load(std::memory_order_acquire);
        }
        if (sequence.load(std::memory_order_relaxed) != 2 * ticket + 2) { continue; }
        TraceRecord& record = events.records.emplace_back(std::bit_cast<TraceRecord>(words));
        record.time_ns = tick_ns(record.time_ns, buffer.started, now);
    }
    return events;
}

Status EventRing::write_file(const std::string& path) const {
    const Events events = read();
    TraceHeader header;
    header.count = events.records.size();
    header.flags = kTraceHasTimes | (events.wrapped ? kTraceWrapped : 0);
    const auto failure = [&path] {
        return Status(Code::InvalidValue, "cannot write " + path + ": " + std::strerror(errno));
    };
    std::FILE* file = std::fopen(path.c_str(), "wb");
    if (file == nullptr) { return failure(); }
    const bool written = std::fwrite(&header, sizeof(header), 1, file) == 1 &&
                         std::fwrite(events.records.data(), sizeof(TraceRecord),
                                     events.records.size(), file) == events.records.size();
    Status status = written ? Status() : failure();
    if (std::fclose(file) != 0 && status.ok()) { status = failure(); }
    return status;
}

}  // namespace gma
