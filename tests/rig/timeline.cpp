// Streams and events. Each stream counts what was queued and what is done; the two are equal unless
// the stream is slow, when only finish(), or a host that waits, moves `done`.
#include "rig.h"

#include <deque>
#include <map>
#include <mutex>
#include <vector>

namespace rig {
namespace {

struct Point {
    std::uintptr_t stream;
    std::uint64_t count;
};
struct Work {
    std::uint64_t count;       // of its stream, as of a Point
    std::vector<Point> after;  // what the stream waited for before it
    std::function<void()> run;
};
struct StreamState {
    std::uint64_t id = 0;
    int device = 0;
    std::uint64_t queued = 0;
    std::uint64_t done = 0;
    bool slow = false;
    Capture capture = Capture::None;
    std::vector<Point> waits;  // points of other streams that later work here follows
    std::deque<Work> work;     // not done yet
};
struct EventState {
    std::vector<Point> after;  // empty: never recorded, which counts as passed
    bool captured = false;
    int device = 0;
};

struct Timeline {
    std::mutex mutex;
    std::map<std::uintptr_t, StreamState> streams;
    std::map<std::uintptr_t, EventState> events;
    std::uintptr_t next = 0x10000;
    std::uint64_t next_id = 1;

    StreamState& stream(std::uintptr_t handle) {
        StreamState& state = streams[handle];
        if (state.id == 0) {
            state.id = next_id++;
            state.device = current_device();
        }
        return state;
    }
    bool reached(const Point& point) {
        const auto found = streams.find(point.stream);
        if (found == streams.end()) { return true; }
        const StreamState& state = found->second;
        const bool is_worked = state.work.empty() || state.work.front().count > point.count;
        return state.done >= point.count && is_worked;
    }
    bool reached(const std::vector<Point>& points) {
        for (const Point& point : points) {
            if (!reached(point)) { return false; }
        }
        return true;
    }
    // Runs all work whose turn has come; one piece may be what another stream waits for.
    void run_due() {
        for (bool has_run = true; has_run;) {
            has_run = false;
            for (auto& [handle, state] : streams) {
                while (!state.work.empty() && state.work.front().count <= state.done &&
                       reached(state.work.front().after)) {
                    state.work.front().run();
                    state.work.pop_front();
                    has_run = true;
                }
            }
        }
    }
    void finish_to(const Point& point) {
        const auto found = streams.find(point.stream);
        if (found != streams.end() && found->second.done < point.count) {
            found->second.done = point.count;
        }
    }
    void finish_stream(StreamState& state) {
        for (const Point& point : state.waits) { finish_to(point); }
        state.waits.clear();
        state.done = state.queued;
        run_due();
    }
};

Timeline& timeline() {
    static Timeline* const kTimeline = new Timeline();
    return *kTimeline;
}

// The default streams (0, 1, 2) are one a card.
std::uintptr_t key(std::uintptr_t stream) {
    return stream <= 2 ? static_cast<std::uintptr_t>(current_device()) * 4 + stream : stream;
}

}  // namespace

std::uintptr_t create_stream() {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const std::uintptr_t handle = all.next += 16;
    all.stream(handle);
    return handle;
}

void destroy_stream(std::uintptr_t stream) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.finish_stream(all.stream(key(stream)));
    all.streams.erase(key(stream));
}

std::uint64_t stream_id(std::uintptr_t stream) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.stream(key(stream)).id;
}

int device_of_stream(std::uintptr_t stream) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.stream(key(stream)).device;
}

bool of_one_device(std::uintptr_t event, std::uintptr_t stream) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.events[event].device == all.stream(key(stream)).device;
}

void set_slow(std::uintptr_t stream, bool slow) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.stream(key(stream)).slow = slow;
}

void enqueue(std::uintptr_t stream, std::function<void()> work) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    StreamState& state = all.stream(key(stream));
    ++state.queued;
    if (!state.slow) { state.done = state.queued; }
    std::erase_if(state.waits, [&](const Point& point) { return all.reached(point); });
    state.work.push_back({state.queued, state.waits, std::move(work)});
    all.run_due();
}

void finish(std::uintptr_t stream) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.finish_stream(all.stream(key(stream)));
}

void finish_all() {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (auto& [handle, state] : all.streams) {
        state.waits.clear();
        state.done = state.queued;
    }
    all.run_due();
}

bool idle(std::uintptr_t stream) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    StreamState& state = all.stream(key(stream));
    return state.done == state.queued && all.reached(state.waits);
}

std::uintptr_t create_event() {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const std::uintptr_t handle = all.next += 16;
    all.events[handle].device = current_device();
    return handle;
}

void destroy_event(std::uintptr_t event) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.events.erase(event);
}

void record(std::uintptr_t event, std::uintptr_t stream) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    StreamState& state = all.stream(key(stream));
    all.events[event].captured = state.capture != Capture::None;
    ++state.queued;
    if (!state.slow) { state.done = state.queued; }
    std::erase_if(state.waits, [&](const Point& point) { return all.reached(point); });
    all.events[event].after = state.waits;
    all.events[event].after.push_back({key(stream), state.queued});
    all.run_due();
}

bool captured(std::uintptr_t event) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.events[event].captured;
}

bool passed(std::uintptr_t event) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.events.find(event);
    return found == all.events.end() || all.reached(found->second.after);
}

void host_waits(std::uintptr_t event) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const Point& point : all.events[event].after) { all.finish_to(point); }
    all.run_due();
}

void stream_waits(std::uintptr_t stream, std::uintptr_t event) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    StreamState& state = all.stream(key(stream));
    for (const Point& point : all.events[event].after) {
        if (!all.reached(point)) { state.waits.push_back(point); }
    }
}

void set_capturing(std::uintptr_t stream, bool capturing) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.stream(key(stream)).capture = capturing ? Capture::Active : Capture::None;
}

Capture capture(std::uintptr_t stream) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.stream(key(stream)).capture;
}

CUresult forbid_in_capture(std::uintptr_t stream, CUresult error) {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    StreamState& state = all.stream(key(stream));
    if (state.capture == Capture::None) { return CUDA_SUCCESS; }
    state.capture = Capture::Invalid;
    return error;
}

bool any_capturing() {
    Timeline& all = timeline();
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (const auto& [handle, state] : all.streams) {
        if (state.capture != Capture::None) { return true; }
    }
    return false;
}

}  // namespace rig
