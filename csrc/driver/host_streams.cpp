#include "driver/host_streams.h"

#include <algorithm>
#include <string>

namespace gma {
namespace {

constexpr std::uint64_t kNever = ~0ULL;

Status no_such_event(const char* name) {
    return Status(Code::DriverFailed, std::string(name) + " failed: no such event",
                  kCudaInvalidHandle);
}

Status destroyed_stream(const char* name) {
    return Status(Code::DriverFailed, std::string(name) + " failed: the stream was destroyed",
                  kCudaInvalidHandle);
}

}  // namespace

HostStreams::HostStreams(const HostDriverConfig& config, HostCalls& calls)
    : timeline_(config.timeline), lag_ns_(config.lag_ns), calls_(calls) {}

Result<Event> HostStreams::record(int device, Stream stream) {
    Queue& queue = queue_of(device, stream);
    if (Status status = refuse_stream("record", queue); !status.ok()) { return status; }
    calls_.charge(Call::Event, 0);
    push(queue, {});
    return Event{events_.insert(mark(queue))};
}

Result<bool> HostStreams::passed(Event event) {
    if (Status status = refuse_while_capturing("passed"); !status.ok()) { return status; }
    const Mark* mark = find(event);
    if (mark == nullptr) { return no_such_event("passed"); }
    calls_.charge_query();
    return has_passed(*mark);
}

Status HostStreams::wait(Stream stream, Event event) {
    const Mark* mark = find(event);
    if (mark == nullptr) { return no_such_event("wait"); }
    Queue& queue = queue_of(mark->own.point.queue->device, stream);
    if (Status status = refuse_stream("wait", queue); !status.ok()) { return status; }
    calls_.charge(Call::Wait, 0);
    push(queue, {.kernel = {}, .awaited = mark->own.point});
    if (timeline_ == HostTimeline::Clock && !has_passed(*mark)) {
        forget_passed(queue);
        for (const Moment& moment : mark->after) { follow(queue, moment); }
        follow(queue, mark->own);
    }
    return Status();
}

Status HostStreams::synchronize(Event event) {
    if (Status status = refuse_while_capturing("synchronize"); !status.ok()) { return status; }
    const Mark* mark = find(event);
    if (mark == nullptr) { return no_such_event("synchronize"); }
    for (const Moment& moment : mark->after) { run_to(moment.point); }
    run_to(mark->own.point);
    return Status();
}

void HostStreams::recycle(Event event) noexcept {
    if (find(event) != nullptr) { events_.erase(static_cast<std::uint64_t>(event)); }
}

Result<std::uint64_t> HostStreams::stream_id(int device, Stream stream) {
    const Queue& queue = queue_of(device, stream);
    if (Status status = refuse_stream("stream_id", queue); !status.ok()) { return status; }
    return queue.id;
}

bool HostStreams::capturing(int device, Stream stream) const {
    const Queue* queue = find_queue(device, stream);
    return queue != nullptr && queue->is_capturing;
}

Status HostStreams::synchronize_device(int device) {
    if (Status status = refuse_while_capturing("synchronize_device"); !status.ok()) {
        return status;
    }
    for (Queue& queue : queues_) {
        if (queue.device == device) { run_to({&queue, queue.queued_count}); }
    }
    return Status();
}

void HostStreams::launch(int device, Stream stream, HostKernel kernel) {
    push(queue_of(device, stream), {.kernel = std::move(kernel), .awaited = {}});
}

Status HostStreams::submit(const char* name, int device, Stream stream, HostKernel kernel) {
    Queue& queue = queue_of(device, stream);
    if (Status status = refuse_stream(name, queue); !status.ok()) { return status; }
    push(queue, {.kernel = std::move(kernel), .awaited = {}});
    return Status();
}

Result<Event> HostStreams::submit_marked(const char* name, int device, Stream stream,
                                         HostKernel kernel) {
    if (Status status = submit(name, device, stream, std::move(kernel)); !status.ok()) {
        return status;
    }
    return Event{events_.insert(mark(queue_of(device, stream)))};
}

std::size_t HostStreams::advance(int device, Stream stream, std::size_t count) {
    Queue& queue = queue_of(device, stream);
    std::size_t done_count = 0;
    while (done_count < count && step(queue)) { ++done_count; }
    return done_count;
}

void HostStreams::drain_all() {
    for (Queue& queue : queues_) { run_to({&queue, queue.queued_count}); }
}

std::size_t HostStreams::queued(int device, Stream stream) const {
    const Queue* queue = find_queue(device, stream);
    return queue == nullptr ? 0 : queue->queued_count - queue->done_count;
}

void HostStreams::hold(int device, Stream stream) { queue_of(device, stream).is_held = true; }

// What was recorded earlier has then passed too: a stream is in order.
void HostStreams::let_go(int device, Stream stream) {
    Queue& queue = queue_of(device, stream);
    if (queue.is_held) {
        queue.is_held = false;
        queue.done_count = queue.queued_count;
    }
}

void HostStreams::set_capturing(int device, Stream stream, bool is_capturing) {
    Queue& queue = queue_of(device, stream);
    if (queue.is_capturing != is_capturing) {
        queue.is_capturing = is_capturing;
        capturing_count_ += is_capturing ? 1 : -1;
    }
}

void HostStreams::destroy(int device, Stream stream) {
    set_capturing(device, stream, false);
    queue_of(device, stream).is_destroyed = true;
}

void HostStreams::reuse(int device, Stream stream) { current_.erase(key_of(device, stream)); }

HostStreams::Key HostStreams::key_of(int device, Stream stream) {
    // cudaStreamLegacy is 1 and another name of stream 0; cudaStreamPerThread is 2.
    const auto number = reinterpret_cast<std::uintptr_t>(stream);
    return {number <= 2 ? device : -1, number == 1 ? nullptr : stream};
}

HostStreams::Queue& HostStreams::queue_of(int device, Stream stream) {
    Queue*& queue = current_[key_of(device, stream)];
    if (queue == nullptr) {
        queue = &queues_.emplace_back();
        queue->device = device;
        queue->id = next_id_++;
    }
    return *queue;
}

const HostStreams::Queue* HostStreams::find_queue(int device, Stream stream) const {
    const auto found = current_.find(key_of(device, stream));
    return found == current_.end() ? nullptr : found->second;
}

bool HostStreams::has_passed(const Moment& moment) const {
    return done(moment.point) || (timeline_ == HostTimeline::Clock && moment.pass_ns <= now_ns_);
}

bool HostStreams::has_passed(const Mark& mark) const {
    return done(mark.own.point) ||
           (has_passed(mark.own) &&
            std::all_of(mark.after.begin(), mark.after.end(),
                        [this](const Moment& moment) { return has_passed(moment); }));
}

// One moment for each awaited stream is enough: a stream is in order, so its last point decides.
void HostStreams::follow(Queue& queue, const Moment& moment) {
    for (Moment& known : queue.after) {
        if (known.point.queue == moment.point.queue) {
            known = known.point.position < moment.point.position ? moment : known;
            return;
        }
    }
    queue.after.push_back(moment);
}

void HostStreams::forget_passed(Queue& queue) {
    std::erase_if(queue.after, [this](const Moment& moment) { return has_passed(moment); });
}

// The point that the stream has reached with what is queued on it by now.
HostStreams::Mark HostStreams::mark(Queue& queue) {
    Mark mark{.own = {{&queue, queue.queued_count}, kNever}, .after = {}};
    if (timeline_ == HostTimeline::Clock) {
        forget_passed(queue);
        mark.after = queue.after;
        if (!queue.is_held) { mark.own.pass_ns = now_ns_ + lag_ns_; }
    }
    return mark;
}

void HostStreams::push(Queue& queue, Operation operation) {
    ++queue.queued_count;
    if (timeline_ == HostTimeline::Manual) {
        queue.operations.push_back(std::move(operation));
    } else if (operation.kernel) {
        operation.kernel();  // on a clock the host's work and the stream's are one
    }
}

bool HostStreams::step(Queue& queue) {
    if (queue.first == queue.operations.size()) { return false; }
    Operation& operation = queue.operations[queue.first];
    if (operation.awaited.queue != nullptr && !done(operation.awaited)) { return false; }
    const HostKernel kernel = std::move(operation.kernel);
    if (++queue.first == queue.operations.size()) {
        queue.operations.clear();
        queue.first = 0;
    }
    if (kernel) { kernel(); }
    ++queue.done_count;
    return true;
}

// Awaited points were recorded before the wait was queued, so this ends.
void HostStreams::run_to(const Point& point) {
    Queue& queue = *point.queue;
    if (timeline_ == HostTimeline::Clock) {
        queue.done_count = std::max(queue.done_count, point.position);
        return;
    }
    while (queue.done_count < point.position) {
        if (!step(queue)) { run_to(queue.operations[queue.first].awaited); }
    }
}

Status HostStreams::refuse_stream(const char* name, const Queue& queue) {
    if (queue.is_destroyed) { return destroyed_stream(name); }
    return queue.is_capturing ? refuse_capturing(name) : Status();
}

Status HostStreams::refuse_capturing(const char* name) {
    ++capture_violations_;
    return Status(Code::DriverFailed, std::string(name) + " failed: the stream is capturing",
                  kCudaCaptureUnsupported);
}

Status HostStreams::refuse_while_capturing(const char* name) {
    if (capturing_count_ == 0) { return Status(); }
    ++capture_violations_;
    return Status(Code::DriverFailed,
                  std::string(name) + " failed: not permitted while a stream is capturing",
                  kCudaCaptureUnsupported);
}

}  // namespace gma
