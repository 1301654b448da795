// The fences of one arena's stream, on the arena's own clock: its count of frees.
//
// A fence recorded when the count was n covers every free up to n, since their work was queued on
// the stream before it. Events are recorded only when somebody needs one: a free makes no driver
// call.
//   passed_count() <= fenced_count() <= the arena's free_count
#pragma once

#include <cstdint>
#include <deque>

#include "driver/driver.h"

namespace gma {

class FenceLine {
public:
    FenceLine(Driver& driver, int device, Stream stream, std::uint64_t stream_id)
        : driver_(driver), device_(device), stream_(stream), stream_id_(stream_id) {}
    FenceLine(const FenceLine&) = delete;
    FenceLine& operator=(const FenceLine&) = delete;
    ~FenceLine() {
        for (const Fence& fence : fences_) { driver_.recycle(fence.event); }
    }

    std::uint64_t passed_count() const { return passed_count_; }
    std::uint64_t fenced_count() const {
        return fences_.empty() ? passed_count_ : fences_.back().count;
    }

    // Asks the driver which fences have passed; stops at the first that has not.
    void poll() {
        while (!fences_.empty()) {
            Result<bool> passed = driver_.passed(fences_.front().event);
            if (!passed || !*passed) { return; }
            retire_front();
        }
    }

    struct Fence {
        Event event{};
        std::uint64_t count = 0;  // frees that it covers
    };

    // The earliest fence that covers the free numbered `count`; `now` is the arena's free_count.
    Result<Fence> covering(std::uint64_t count, std::uint64_t now) {
        for (const Fence& fence : fences_) {
            if (fence.count >= count) { return fence; }
        }
        // A destroyed stream's handle may name another stream by now: its event would say nothing.
        // Id 0: the stream was first met while it captured, and could not be asked.
        if (stream_ != nullptr && stream_id_ != 0) {
            Result<std::uint64_t> id = driver_.stream_id(device_, stream_);
            if (!id) { return id.status(); }
            if (*id != stream_id_) {
                return Status(Code::DriverFailed, "the stream was destroyed before its fence");
            }
        }
        Result<Event> event = driver_.record(device_, stream_);
        if (!event) { return event.status(); }
        fences_.push_back({*event, now});
        return fences_.back();
    }

    // The host waits until the free numbered `count` has passed.
    Status synchronize(std::uint64_t count, std::uint64_t now) {
        if (count <= passed_count_) { return {}; }
        Result<Fence> fence = covering(count, now);
        if (!fence) { return fence.status(); }
        if (Status status = driver_.synchronize(fence->event); !status.ok()) { return status; }
        while (!fences_.empty() && passed_count_ < count) { retire_front(); }
        return {};
    }

    // Everything up to `now` is known to be done (the host waited for the whole device).
    void all_passed(std::uint64_t now) {
        while (!fences_.empty()) { retire_front(); }
        passed_count_ = now;
    }

private:
    void retire_front() {
        passed_count_ = fences_.front().count;
        driver_.recycle(fences_.front().event);
        fences_.pop_front();
    }

    Driver& driver_;
    const int device_;
    const Stream stream_;
    const std::uint64_t stream_id_;
    std::deque<Fence> fences_;
    std::uint64_t passed_count_ = 0;
};

}  // namespace gma
