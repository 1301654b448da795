// Streams and events on the CPU, on one of two timelines.
//
// An event is a point: a stream and how many operations were queued on it. It has passed when the
// stream has done as many. Manual: streams do operations only when told to, so a block that is
// used again too early holds wrong data. Clock: a stream does what was recorded `lag` ago.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "driver/driver.h"
#include "driver/host_calls.h"
#include "driver/host_config.h"
#include "driver/host_slots.h"

namespace gma {

using HostKernel = std::function<void()>;

// Not locked: its owner is.
class HostStreams {
public:
    HostStreams(const HostDriverConfig& config, HostCalls& calls);

    Result<Event> record(int device, Stream stream);
    Result<bool> passed(Event event);
    Status wait(Stream stream, Event event);
    Status synchronize(Event event);
    void recycle(Event event) noexcept;
    Result<std::uint64_t> stream_id(int device, Stream stream);
    bool capturing(int device, Stream stream) const;
    Status synchronize_device(int device);

    void launch(int device, Stream stream, HostKernel kernel);
    // As a driver call launches: refused where record() is. The event is behind the kernel.
    Status submit(const char* name, int device, Stream stream, HostKernel kernel);
    Result<Event> submit_marked(const char* name, int device, Stream stream, HostKernel kernel);
    std::size_t advance(int device, Stream stream, std::size_t count);
    void drain_all();
    std::size_t queued(int device, Stream stream) const;

    void set_time_ns(std::uint64_t now_ns) { now_ns_ = now_ns; }
    std::uint64_t time_ns() const { return now_ns_; }
    void hold(int device, Stream stream);
    void let_go(int device, Stream stream);

    void set_capturing(int device, Stream stream, bool is_capturing);
    void destroy(int device, Stream stream);
    void reuse(int device, Stream stream);

    std::size_t outstanding_events() const { return events_.size(); }
    std::uint64_t capture_violations() const { return capture_violations_; }

private:
    struct Queue;
    struct Point {
        Queue* queue = nullptr;
        std::uint64_t position = 0;
    };
    // Clock: a point and when it passes by itself; kNever on a held stream.
    struct Moment {
        Point point;
        std::uint64_t pass_ns = 0;
    };
    struct Operation {
        HostKernel kernel;  // empty for a recorded event and for a wait
        Point awaited;      // queue is nullptr unless this is a wait
    };
    // One stream from its first use to its destruction. Never deleted: events point here.
    struct Queue {
        int device = 0;
        std::uint64_t id = 0;
        std::uint64_t queued_count = 0;
        std::uint64_t done_count = 0;
        std::vector<Operation> operations;  // Manual: the last queued_count - done_count ones
        std::size_t first = 0;              // index of the next operation
        std::vector<Moment> after;          // Clock: no later event passes before these
        bool is_held = false;
        bool is_capturing = false;
        bool is_destroyed = false;
    };
    // What an Event stands for.
    struct Mark {
        Moment own;
        std::vector<Moment> after;  // what its stream waited for, and all that those waited for
    };
    // The default streams exist once per device under the same handle.
    using Key = std::pair<int, Stream>;

    static Key key_of(int device, Stream stream);
    Queue& queue_of(int device, Stream stream);
    const Queue* find_queue(int device, Stream stream) const;
    Mark* find(Event event) { return events_.find(static_cast<std::uint64_t>(event)); }

    static bool done(const Point& point) { return point.queue->done_count >= point.position; }
    bool has_passed(const Moment& moment) const;
    bool has_passed(const Mark& mark) const;
    void follow(Queue& queue, const Moment& moment);
    void forget_passed(Queue& queue);
    Status refuse_stream(const char* name, const Queue& queue);
    Mark mark(Queue& queue);
    void push(Queue& queue, Operation operation);
    bool step(Queue& queue);
    void run_to(const Point& point);
    Status refuse_capturing(const char* name);
    Status refuse_while_capturing(const char* name);

    const HostTimeline timeline_;
    const std::uint64_t lag_ns_;
    HostCalls& calls_;
    std::uint64_t now_ns_ = 0;
    std::uint64_t next_id_ = 1;
    std::uint64_t capture_violations_ = 0;
    int capturing_count_ = 0;
    std::deque<Queue> queues_;
    std::map<Key, Queue*> current_;
    HostSlots<Mark> events_;
};

}  // namespace gma
