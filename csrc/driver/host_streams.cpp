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
    if (queue.is_destroyed) {
        return destroyed_stream("record");
    }
    if (queue.is_capturing) {
        ++capture_violations_;
        return Status(Code::DriverFailed, "record failed: the stream is capturing",
                      kCudaCaptureUnsupported);
    }
    calls_.charge(Call::Event, 0);
    push(queue, {});
    Mark mark{.point = {&queue, queue.queued_count}, .pass_ns = kNever, .held_by = {}};
    if (timeline_ == HostTimeline::Clock) {
        std::erase_if(queue.held_by, done);
        mark.held_by = queue.held_by;
        if (!queue.is_held) {
            mark.pass_ns = std::max(now_ns_ + lag_ns_, queue.not_before_ns);
        }
    }
    return Event{events_.insert(std::move(mark))};
}

Result<bool> HostStreams::passed(Event event) {
    if (Status status = refuse_while_capturing("passed"); !status.ok()) {
        return status;
    }
    const Mark* mark = find(event);
    if (mark == nullptr) {
        return no_such_event("passed");
    }
    calls_.charge_query();
    return has_passed(*mark);
}

Status HostStreams::wait(Stream stream, Event event) {
    const Mark* mark = find(event);
    if (mark == nullptr) {
        return no_such_event("wait");
    }
    Queue& queue = queue_of(mark->point.queue->device, stream);
    if (queue.is_destroyed) {
        return destroyed_stream("wait");
    }
    if (queue.is_capturing) {
        ++capture_violations_;
        return Status(Code::DriverFailed, "wait failed: the stream is capturing",
                      kCudaCaptureUnsupported);
    }
    calls_.charge(Call::Wait, 0);
    push(queue, {.kernel = {}, .awaited = mark->point});
    if (timeline_ == HostTimeline::Clock && !has_passed(*mark)) {
        queue.held_by.insert(queue.held_by.end(), mark->held_by.begin(), mark->held_by.end());
        if (mark->pass_ns == kNever) {
            queue.held_by.push_back(mark->point);
        } else {
            queue.not_before_ns = std::max(queue.not_before_ns, mark->pass_ns);
        }
    }
    return Status();
}

Status HostStreams::synchronize(Event event) {
    if (Status status = refuse_while_capturing("synchronize"); !status.ok()) {
        return status;
    }
    const Mark* mark = find(event);
    if (mark == nullptr) {
        return no_such_event("synchronize");
    }
    for (const Point& point : mark->held_by) {
        run_to(point);
    }
    run_to(mark->point);
    return Status();
}

void HostStreams::recycle(Event event) noexcept {
    if (find(event) != nullptr) {
        events_.erase(static_cast<std::uint64_t>(event));
    }
}

Result<std::uint64_t> HostStreams::stream_id(int device, Stream stream) {
    const Queue& queue = queue_of(device, stream);
    return queue.is_destroyed ? Result<std::uint64_t>(destroyed_stream("stream_id"))
                              : Result<std::uint64_t>(queue.id);
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
        if (queue.device == device) {
            run_to({&queue, queue.queued_count});
        }
    }
    return Status();
}

void HostStreams::launch(int device, Stream stream, HostKernel kernel) {
    push(queue_of(device, stream), {.kernel = std::move(kernel), .awaited = {}});
}

std::size_t HostStreams::advance(int device, Stream stream, std::size_t count) {
    Queue& queue = queue_of(device, stream);
    std::size_t done_count = 0;
    while (done_count < count && step(queue)) {
        ++done_count;
    }
    return done_count;
}

void HostStreams::drain_all() {
    for (Queue& queue : queues_) {
        run_to({&queue, queue.queued_count});
    }
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
    // cudaStreamLegacy is 1, cudaStreamPerThread 2.
    const bool is_default = reinterpret_cast<std::uintptr_t>(stream) <= 2;
    return {is_default ? device : -1, stream};
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

bool HostStreams::has_passed(const Mark& mark) const {
    if (done(mark.point)) {
        return true;
    }
    return timeline_ == HostTimeline::Clock && mark.pass_ns <= now_ns_ &&
           std::all_of(mark.held_by.begin(), mark.held_by.end(), done);
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
    if (queue.first == queue.operations.size()) {
        return false;
    }
    Operation& operation = queue.operations[queue.first];
    if (operation.awaited.queue != nullptr && !done(operation.awaited)) {
        return false;
    }
    const HostKernel kernel = std::move(operation.kernel);
    if (++queue.first == queue.operations.size()) {
        queue.operations.clear();
        queue.first = 0;
    }
    if (kernel) {
        kernel();
    }
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
        if (!step(queue)) {
            run_to(queue.operations[queue.first].awaited);
        }
    }
}

Status HostStreams::refuse_while_capturing(const char* name) {
    if (capturing_count_ == 0) {
        return Status();
    }
    ++capture_violations_;
    return Status(Code::DriverFailed,
                  std::string(name) + " failed: not permitted while a stream is capturing",
                  kCudaCaptureUnsupported);
}

}  // namespace gma
