#include "core/redzones.h"

#include <utility>

#include "core/usable_stream.h"

namespace gma {

Redzones::~Redzones() { collect(true); }

void Redzones::add(const PendingFree& free, Stream stream, std::uint64_t stream_id, ByteRange gap) {
    Item item{free, gap, {}, false};
    if (const LedgerEntry* tensor = ledger_.gone(free.address)) { item.tensor = *tensor; }
    batches_[{stream, stream_id}].push_back(item);
    ++count_;
    bytes_ += free.bytes;
    if (free.block != nullptr) { large_bytes_ += free.bytes; }
}

std::vector<PendingFree> Redzones::flush() {
    std::vector<PendingFree> done;
    for (auto& [key, batch] : std::exchange(batches_, {})) {
        const auto stream = usable_stream(driver_, device_, key.first, key.second);
        if (stream) { start_check(stream->stream, batch); }
        if (!stream || !refill(stream->stream, batch) ||
            !order_before_others(driver_, device_, *stream).ok()) {
            batches_[key] = std::move(batch);
            continue;
        }
        for (const Item& item : batch) {
            --count_;
            bytes_ -= item.free.bytes;
            if (item.free.block != nullptr) { large_bytes_ -= item.free.bytes; }
            done.push_back(item.free);
        }
    }
    return done;
}

void Redzones::start_check(Stream stream, Batch& batch) {
    std::vector<ByteRange> gaps;
    RunningCheck running{};
    for (Item& item : batch) {
        if (std::exchange(item.looked_at, true)) { continue; }
        if (item.gap.begin == item.gap.end) {
            ++unchecked_count_;
            continue;
        }
        gaps.push_back(item.gap);
        running.tensors.push_back(item.tensor);
    }
    if (gaps.empty()) { return; }
    Result<Check> check = driver_.check(device_, stream, gaps, kPattern);
    if (!check) {
        unchecked_count_ += static_cast<std::int64_t>(gaps.size());
        return;
    }
    running.check = *check;
    checks_.push_back(std::move(running));
}

// The redzone too, which may have been written.
bool Redzones::refill(Stream stream, const Batch& batch) {
    std::vector<ByteRange> ranges;
    for (const Item& item : batch) {
        ranges.push_back({item.free.address, item.free.address + item.free.bytes});
    }
    return driver_.fill(device_, stream, ranges, kPattern).ok();
}

void Redzones::collect(bool wait) {
    while (!checks_.empty()) {
        RunningCheck& oldest = checks_.front();
        std::vector<Finding> findings;
        const Result<bool> done = driver_.checked(oldest.check, wait, findings);
        if (done && !*done) { return; }
        if (!done) { unchecked_count_ += static_cast<std::int64_t>(oldest.tensors.size()); }
        for (const Finding& finding : findings) {
            Violation violation;
            violation.tensor = oldest.tensors[finding.range];
            violation.first_bad = finding.first_bad;
            violation.bad_bytes = finding.bad_bytes;
            violation.found = finding.found;
            ledger_.add(violation);
        }
        checks_.pop_front();
    }
}

}  // namespace gma
