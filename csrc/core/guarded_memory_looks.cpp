// Looking at handles that others had before: a write after the last tensor's free, before its pages
// were unmapped, is found there.
#include "core/guarded_memory.h"

#include <algorithm>
#include <utility>

namespace gma {

// Windows of this size that are mapped for the tensors to come go along, since a look costs the
// host as much as all the rest of an allocation.
void GuardedMemory::look_at_reused(Window& window) {
    std::vector<GuardedChunk*> chunks;
    Look look;
    std::vector<ByteRange> ranges;
    const auto add = [&](Address at, GuardedChunk& chunk) {
        chunks.push_back(&chunk);
        look.chunks.emplace_back(at, chunk);
        ranges.push_back({at, at + chunk.bytes});
    };
    Address at = window.pages;
    for (GuardedChunk& chunk : window.chunks) {
        if (chunk.patterned && chunk.look == 0) { add(at, chunk); }
        at += chunk.bytes;
    }
    if (ranges.empty()) { return; }
    if (ranges.size() == 1) {
        const Bytes bytes = window.pages_bytes;
        const std::size_t most = std::clamp<std::size_t>(kLookBytes / bytes, 1, kLookChunks) - 1;
        for (GuardedChunk* next : cache_.unseen(window.stream_id, bytes, most)) {
            add(next->window + page_bytes_, *next);
        }
    }
    Result<Check> check = driver_.check(device_, window.stream, ranges, kPattern);
    if (!check) {
        ++unchecked_count_;
        // It may be on its way, to windows that the cache gives back at any time.
        static_cast<void>(driver_.synchronize_device(device_));
        return;
    }
    look.check = *check;
    for (GuardedChunk* chunk : chunks) { chunk->look = next_look_; }
    looks_.emplace(next_look_++, std::move(look));
}

bool GuardedMemory::collect_look(std::uint64_t number, Passage passage) {
    const auto at = looks_.find(number);
    if (at == looks_.end()) { return true; }
    std::vector<Finding> findings;
    Status status;
    if (passage == Passage::Known) {
        status = driver_.passed_check(at->second.check, findings);
    } else {
        // To wait costs 20 times what asking does, and most are done.
        Result<bool> done = driver_.checked(at->second.check, false, findings);
        if (done && !*done && passage == Passage::Ask) { return false; }
        if (done && !*done) { done = driver_.checked(at->second.check, true, findings); }
        status = done.status();
        // What it reads may be unmapped next.
        if (!status.ok()) { static_cast<void>(driver_.synchronize_device(device_)); }
    }
    unchecked_count_ += status.ok() ? 0 : 1;
    tell(at->second, findings);
    looks_.erase(at);
    return true;
}

// Before it is unmapped: not under what the card is about to read.
void GuardedMemory::end_look(GuardedChunk& chunk, Passage passage) {
    if (chunk.look != 0) { collect_look(std::exchange(chunk.look, 0), passage); }
}

// While a graph is captured no look is waited for, nor may one be queued for what the graph writes:
// what is looked at is out of reach then, as if it were stuck.
std::vector<GuardedChunk> GuardedMemory::put_looked_at_aside() {
    if (looks_.empty()) { return {}; }
    std::vector<GuardedChunk> aside =
        cache_.take_if([this](const GuardedChunk& chunk) { return looks_.contains(chunk.look); });
    for (const GuardedChunk& chunk : aside) { stuck_bytes_ += chunk.bytes; }
    return aside;
}

void GuardedMemory::bring_back(const std::vector<GuardedChunk>& aside) {
    for (const GuardedChunk& chunk : aside) {
        stuck_bytes_ -= chunk.bytes;
        cache_.put(chunk.stream_id, chunk);
    }
}

// The last tensor's addresses are told, not the next one's.
void GuardedMemory::tell(const Look& look, const std::vector<Finding>& findings) {
    for (const Finding& finding : findings) {
        const auto& [at, chunk] = look.chunks[finding.range];
        Violation violation;
        violation.kind = Violation::Kind::WriteAfterFree;
        violation.tensor = chunk.tensor;
        violation.first_bad = chunk.last_begin + (finding.first_bad - at);
        violation.bad_bytes = finding.bad_bytes;
        violation.found = finding.found;
        ledger_.add(violation);
        spoiled_.insert(chunk.handle);
    }
}

bool GuardedMemory::is_spoiled(const Window& window) const {
    return !spoiled_.empty() &&
           std::any_of(window.chunks.begin(), window.chunks.end(),
                       [&](const GuardedChunk& chunk) { return spoiled_.contains(chunk.handle); });
}

// To ask costs a third of an allocation, and those of tensors that are freed are known to be done.
void GuardedMemory::poll_looks() {
    if (!looks_.empty() && ++poll_count_ % kLookChunks == 0) { collect_looks(false); }
}

void GuardedMemory::collect_looks(bool wait) {
    while (!looks_.empty()) {
        const Passage passage = wait ? Passage::Wait : Passage::Ask;
        if (!collect_look(looks_.begin()->first, passage)) { return; }
    }
}

}  // namespace gma
