#include "core/pending_frees.h"

#include <algorithm>

namespace gma {

PendingFrees::~PendingFrees() {
    for (auto& [id, queue] : queues_) {
        for (const Fence& fence : queue) {
            driver_.recycle(fence.event);
            if (--fence.free->fences_left == 0) { delete fence.free; }
        }
    }
    for (auto& [free, uses] : unfenced_) {
        if (--free->fences_left == 0) { delete free; }
    }
}

Status PendingFrees::record(Address address, Stream stream, Defer capture) {
    std::uint64_t stream_id = 0;
    if (capture == Defer::No || answers(stream)) {
        Result<std::uint64_t> id = driver_.stream_id(device_, stream);
        if (!id) { return id.status(); }
        stream_id = *id;
    }
    std::vector<Use>& uses = uses_[address];
    for (const Use& use : uses) {
        if (use.stream == stream && use.stream_id == stream_id) { return {}; }
    }
    uses.push_back({stream, stream_id});
    return {};
}

bool PendingFrees::answers(Stream stream) {
    const Result<bool> capturing = driver_.capturing(device_, stream);
    return capturing && !*capturing;
}

Status PendingFrees::finish_uses(Address address) {
    const auto it = uses_.find(address);
    if (it == uses_.end()) { return {}; }
    for (const Use& use : it->second) {
        const Result<std::uint64_t> id = driver_.stream_id(device_, use.stream);
        Result<Event> event = Status(Code::DriverFailed, "the stream is gone");
        if (id && (use.stream_id == 0 || *id == use.stream_id)) {
            event = driver_.record(device_, use.stream);
        }
        Status status = event ? driver_.synchronize(*event) : driver_.synchronize_device(device_);
        if (event) { driver_.recycle(*event); }
        if (!status.ok()) { return status; }
    }
    uses_.erase(it);
    return {};
}

void PendingFrees::count(const PendingFree& free, int sign) {
    bytes_ += sign > 0 ? free.bytes : -free.bytes;
    if (free.block != nullptr) { large_bytes_ += sign > 0 ? free.bytes : -free.bytes; }
}

Result<bool> PendingFrees::add(PendingFree free, Defer defer) {
    auto node = uses_.extract(free.address);
    if (node.empty()) { return true; }
    count(free, 1);
    if (defer == Defer::Yes) {
        deferred_.emplace_back(free, std::move(node.mapped()));
        return false;
    }
    auto* pending = new PendingFree(free);
    if (fence(pending, node.mapped())) { return false; }
    count(free, -1);
    delete pending;
    return true;
}

// False: no fence was needed, or all that could not be recorded were waited for.
bool PendingFrees::fence(PendingFree* free, const std::vector<Use>& uses) {
    std::vector<Use> lost;
    for (const Use& use : uses) {
        Result<std::uint64_t> id = driver_.stream_id(device_, use.stream);
        Result<Event> event = Status(Code::DriverFailed, "the stream is gone");
        if (id && (use.stream_id == 0 || *id == use.stream_id)) {
            event = driver_.record(device_, use.stream);
        }
        if (!event) {
            lost.push_back(use);
            continue;
        }
        ++free->fences_left;
        queues_[*id].push_back({*event, free, next_order_++});
    }
    // The work of a destroyed stream goes on, and only the device can tell when it is done.
    if (!lost.empty() && !driver_.synchronize_device(device_).ok()) {
        ++free->fences_left;
        unfenced_.emplace_back(free, std::move(lost));
    }
    return free->fences_left > 0;
}

void PendingFrees::retry_unfenced() {
    for (auto& [free, uses] : std::exchange(unfenced_, {})) {
        fence(free, uses);
        // What it counted for until now is a fence that has passed.
        queues_[0].push_back({Event{}, free, next_order_++});
    }
}

void PendingFrees::resume() {
    auto deferred = std::exchange(deferred_, {});
    for (auto& [free, uses] : deferred) {
        auto* pending = new PendingFree(free);
        if (fence(pending, uses)) { continue; }
        // Complete already: keep it for the next poll, under a fence that has passed.
        pending->fences_left = 1;
        queues_[0].push_back({Event{}, pending, next_order_++});
    }
}

void PendingFrees::finish_front(std::deque<Fence>& queue, std::vector<PendingFree>& done) {
    const Fence fence = queue.front();
    queue.pop_front();
    if (fence.event != Event{}) { driver_.recycle(fence.event); }
    if (--fence.free->fences_left > 0) { return; }
    count(*fence.free, -1);
    done.push_back(*fence.free);
    delete fence.free;
}

std::vector<PendingFree> PendingFrees::poll() {
    retry_unfenced();
    std::vector<PendingFree> done;
    for (auto& [id, queue] : queues_) {
        while (!queue.empty()) {
            if (queue.front().event != Event{}) {
                Result<bool> passed = driver_.passed(queue.front().event);
                if (!passed || !*passed) { break; }
            }
            finish_front(queue, done);
        }
    }
    std::sort(done.begin(), done.end(), [](const PendingFree& a, const PendingFree& b) {
        return a.address < b.address;  // whatever order the hash map has
    });
    return done;
}

Result<std::vector<PendingFree>> PendingFrees::wait_oldest() {
    retry_unfenced();
    std::vector<PendingFree> done;
    while (done.empty()) {
        std::deque<Fence>* oldest = nullptr;
        for (auto& [id, queue] : queues_) {
            if (!queue.empty() &&
                (oldest == nullptr || queue.front().order < oldest->front().order)) {
                oldest = &queue;
            }
        }
        if (oldest == nullptr) { break; }
        if (oldest->front().event != Event{}) {
            if (Status s = driver_.synchronize(oldest->front().event); !s.ok()) { return s; }
        }
        finish_front(*oldest, done);
    }
    return done;
}

}  // namespace gma
