#include "torch/bridge/history.h"

#include <c10/util/ApproximateClock.h>
#include <pthread.h>

#include <algorithm>
#include <optional>

#include "base/trace_record.h"
#include "torch/bridge/context_cache.h"
#include "torch/bridge/history_entry.h"
#include "torch/bridge/history_telling.h"

namespace gma::bridge {
namespace {

using TraceEntry = History::TraceEntry;

constexpr std::size_t kAnnotationCount = 100'000;

c10::ApproximateClockToUnixTimeConverter& clock() {
    static auto* const kClock = new c10::ApproximateClockToUnixTimeConverter();
    return *kClock;
}

// Actions under torch's names, as skip_actions has them.
struct NamedAction {
    const char* name;
    TraceEntry::Action action;
};
constexpr NamedAction kActions[] = {
    {"alloc", TraceEntry::ALLOC},
    {"free_requested", TraceEntry::FREE_REQUESTED},
    {"free_completed", TraceEntry::FREE_COMPLETED},
    {"segment_alloc", TraceEntry::SEGMENT_ALLOC},
    {"segment_free", TraceEntry::SEGMENT_FREE},
    {"segment_map", TraceEntry::SEGMENT_MAP},
    {"segment_unmap", TraceEntry::SEGMENT_UNMAP},
    {"snapshot", TraceEntry::SNAPSHOT},
    {"oom", TraceEntry::OOM},
#if GMA_TORCH_AT_LEAST(14)
    {"annotate", TraceEntry::ANNOTATE},
#endif
};

std::uint32_t bits_of(const std::vector<std::string>& names) {
    std::uint32_t bits = 0;
    for (const std::string& name : names) {
        bool known = false;
        for (const NamedAction& one : kActions) {
            if (name == one.name) {
                bits |= 1U << one.action;
                known = true;
            }
        }
        TORCH_CHECK(known, "Unknown TraceEntry action: ", name);
    }
    return bits;
}

TraceEntry::Action action_of(Action action) {
    switch (action) {
        case Action::SegmentAlloc:
            return TraceEntry::SEGMENT_ALLOC;
        case Action::SegmentFree:
            return TraceEntry::SEGMENT_FREE;
        case Action::SegmentMap:
            return TraceEntry::SEGMENT_MAP;
        case Action::SegmentUnmap:
            return TraceEntry::SEGMENT_UNMAP;
        default:
            return TraceEntry::FREE_COMPLETED;
    }
}

}  // namespace

thread_local constinit History::Cause* History::the_cause = nullptr;
thread_local constinit const std::shared_ptr<const Labels>* History::the_labels = nullptr;

void History::set(const Settings& settings) {
    TORCH_CHECK(settings.when == RecordContext::NEVER || settings.gather != nullptr,
                "recording with contexts needs a function that gathers them");
    const std::uint32_t skipped = bits_of(settings.skip_actions);
    if (settings.enabled) { stop_in_children(); }
    static_cast<void>(clock());           // its first reading precedes the first event
    std::vector<HistoryRing> gone_rings;  // millions of entries: let go outside the lock
    decltype(contexts_) gone_contexts;
    if (!settings.enabled) { gather_ = nullptr; }
    forget_contexts();
    const std::lock_guard telling(telling_);
    const std::lock_guard guard(lock_);
    recording_ = settings.enabled;
    gather_ = settings.enabled ? settings.gather : nullptr;
    when_ = settings.enabled ? settings.when : RecordContext::NEVER;
    max_entries_ = std::max<std::size_t>(settings.max_entries, 1);
    skipped_ = skipped;
    if (!settings.enabled || settings.clear) {
        gone_rings.swap(rings_);
        annotations_.clear();
    }
    if (!settings.enabled) { gone_contexts.swap(contexts_); }
    for (HistoryRing& ring : rings_) { gone_rings.push_back(ring.set_capacity(max_entries_)); }
    listening_ = settings.enabled || has_trackers();
    update_plain();
}

// A forked child has our locks as they were, perhaps held, and the core refuses it everything: so
// nothing is noted there, nor gathered for, which might wait for Python.
void History::stop_in_children() {
    static History* const kTheOne = this;
    static const int kRefused = pthread_atfork(nullptr, nullptr, [] {
        kTheOne->when_ = RecordContext::NEVER;
        kTheOne->listening_ = false;
        kTheOne->recording_ = false;
        kTheOne->has_trackers_ = false;
        kTheOne->plain_ = false;
        the_telling = nullptr;
    });
    static_cast<void>(kRefused);  // for want of host memory: then the child goes on as before
}

void History::update_plain() {
    plain_ = recording() && !has_trackers_ && skipped_ == 0 && when_ < RecordContext::ALLOC;
}

History::Context History::gather_now() const {
    const auto function = gather_.load(std::memory_order_relaxed);
    return function != nullptr ? gather_or_reuse(function) : nullptr;
}

namespace {

History::Event event_of(const TraceRecord& record, TraceEntry::Action action) {
    return {action,
            static_cast<c10::DeviceIndex>(record.device),
            record.address,
            record.bytes,
            reinterpret_cast<void*>(record.stream),
            {record.pool_first, record.pool_second}};
}

// Field by field into memory that is written once: a copy by way of the stack costs more than all
// else here.
void write(HistoryEntry& entry, const History::Event& event, bool completes,
           c10::approx_time_t time) {
    entry.address = event.address;
    entry.time = time;
    entry.bytes = event.bytes;
    entry.pool_second = static_cast<std::uint32_t>(event.pool.second);
    entry.pool_first = static_cast<std::uint32_t>(event.pool.first);
    entry.stream = event.stream;
    entry.action = static_cast<std::uint8_t>(event.action);
    entry.device = static_cast<std::int8_t>(event.device);
    entry.completes = completes;
}

}  // namespace

template <class PlaceContext>
[[gnu::always_inline]] inline void History::append(From from, const Event& event,
                                                   Completes completes,
                                                   const std::shared_ptr<const Labels>* labels,
                                                   PlaceContext&& place_context) {
    HistoryExtra extra;
    if (labels != nullptr) { extra.labels = *labels; }
    std::optional<Telling> telling;
    if (has_trackers()) [[unlikely]] { telling.emplace(*this, from); }
    HistoryEntry told;
    HistoryExtra told_extra;
    {
        const std::lock_guard guard(lock_);
        const bool is_kept = when_.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
        place_context(is_kept ? &extra.context : nullptr);
        const c10::approx_time_t time = now_locked();
        if (telling) [[unlikely]] {
            write(told, event, completes == Completes::Yes, time);
            told_extra = extra;
        }
        if (recording()) [[likely]] { push_locked(event, completes, time, extra); }
    }
    if (telling) [[unlikely]] { tell(*telling, told, told_extra); }
}

[[gnu::always_inline]] inline void History::push_locked(const Event& event, Completes completes,
                                                        c10::approx_time_t time,
                                                        HistoryExtra& extra) {
    const auto device = static_cast<std::size_t>(event.device);
    while (device >= rings_.size()) { rings_.emplace_back().set_capacity(max_entries_); }
    if (skipped_.load(std::memory_order_relaxed) != 0) [[unlikely]] {
        const bool has_end = completes == Completes::Yes && !skipped(TraceEntry::FREE_COMPLETED);
        if (!skipped(event.action)) {
            write(rings_[device].push(extra), event, has_end, time);
        } else if (has_end) {
            Event end = event;
            end.action = TraceEntry::FREE_COMPLETED;
            write(rings_[device].push(extra), end, false, time);
        }
        return;
    }
    write(rings_[device].push(extra), event, completes == Completes::Yes, time);
}

void History::note(const Event& event, Context&& context) {
    if (!listening()) { return; }
    append(From::Door, event, Completes::No, the_labels, [&](Context* kept) {
        if (kept != nullptr) { *kept = std::move(context); }
    });
}

[[gnu::always_inline]] inline HistoryEntry* History::plain_slot_locked(c10::DeviceIndex device) {
    const auto index = static_cast<std::size_t>(device);
    if (!is_plain() || the_labels != nullptr || index >= rings_.size()) { return nullptr; }
    return rings_[index].push_plain();
}

void History::note_allocation(const Event& event, Context&& context) {
    if (is_plain()) [[likely]] {
        const std::lock_guard guard(lock_);
        if (HistoryEntry* slot = plain_slot_locked(event.device)) [[likely]] {
            write(*slot, event, false, now_locked());
            if (context != nullptr) { contexts_[event.address] = std::move(context); }
            return;
        }
    }
    append_allocation(event, std::move(context));
}

[[gnu::noinline]] void History::append_allocation(const Event& event, Context&& context) {
    append(From::Door, event, Completes::No, the_labels, [&](Context* kept) {
        // Once recording has ended, nobody would take it away again when the block is freed.
        if (context == nullptr || !recording()) { return; }
        if (kept != nullptr) { *kept = context; }
        contexts_[event.address] = std::move(context);
    });
}

void History::note_free(const TraceRecord& block, Context&& context) {
    Context allocated_by;  // let go outside the lock
    append(From::Door, event_of(block, TraceEntry::FREE_REQUESTED), completes_of(block), the_labels,
           [&](Context* kept) {
               if (!contexts_.empty()) { take_context_locked(block.address, allocated_by); }
               if (kept != nullptr) { *kept = std::move(context ? context : allocated_by); }
           });
}

// What cannot be gathered is left out.
History::ObservedFree::ObservedFree(History& history) noexcept : history_(history) {
    try {
        extra_.context = history.gather(RecordContext::ALL);
    } catch (...) {}
}

void History::ObservedFree::note(const TraceRecord& block) noexcept {
    bytes_ = block.bytes;
    device_ = static_cast<c10::DeviceIndex>(block.device);
    try {
        history_.note_observed(block, extra_, allocated_by_);
    } catch (...) {  // the host is out of memory: the event is lost, the allocator is not
    }
}

// Under locks of the core's: nothing is let go here. A tracker that comes at this very moment has
// not seen it.
void History::note_observed(const TraceRecord& block, HistoryExtra& extra, Context& allocated_by) {
    const std::lock_guard guard(lock_);
    if (!recording()) [[unlikely]] { return; }
    if (!contexts_.empty()) { take_context_locked(block.address, allocated_by); }
    HistoryEntry* slot = plain_slot_locked(static_cast<c10::DeviceIndex>(block.device));
    if (slot == nullptr) [[unlikely]] {
        return push_observed_locked(block, extra, std::move(allocated_by));
    }
    write(*slot, event_of(block, TraceEntry::FREE_REQUESTED), block.action == Action::Free,
          now_locked());
}

[[gnu::noinline]] void History::push_observed_locked(const TraceRecord& block, HistoryExtra& extra,
                                                     Context&& allocated_by) {
    const bool is_kept = when_.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
    if (is_kept && extra.context == nullptr) { extra.context = std::move(allocated_by); }
    if (the_labels != nullptr) { extra.labels = *the_labels; }
    push_locked(event_of(block, TraceEntry::FREE_REQUESTED), completes_of(block), now_locked(),
                extra);
}

void History::take_context_locked(std::size_t address, Context& taken) {
    const auto it = contexts_.find(address);
    if (it == contexts_.end()) { return; }
    taken = std::move(it->second);
    contexts_.erase(it);
}

void History::note(const TraceRecord& record) noexcept {
    if (!listening()) { return; }
    try {
        append(From::Core, event_of(record, action_of(record.action)), Completes::No, the_labels,
               [](Context* kept) {
                   if (kept != nullptr && the_cause != nullptr) { *kept = the_cause->context_; }
               });
    } catch (...) {  // the host is out of memory: the event is lost, the allocator is not
    }
}

void History::note_annotation(const Event& event, const std::string& metadata, Context&& context) {
    if (!listening()) { return; }
    const auto labels = std::make_shared<const Labels>(Labels{kNoCompileContext, metadata});
    append(From::Door, event, Completes::No, &labels, [&](Context* kept) {
        if (kept != nullptr) { *kept = std::move(context); }
    });
}

std::vector<TraceEntry> History::entries(c10::DeviceIndex device) const {
    const auto to_ns = clock().makeConverter();
    const std::lock_guard guard(lock_);
    std::vector<TraceEntry> result;
    const auto index = static_cast<std::size_t>(device);
    if (index >= rings_.size()) { return result; }
    result.reserve(2 * rings_[index].size());
    rings_[index].for_each([&](const HistoryEntry& entry, const HistoryExtra& extra) {
        expand(entry, extra, [&](TraceEntry&& told) {
            told.time_.t_ = to_ns(told.time_.approx_t_) / 1000;
            result.push_back(std::move(told));
        });
    });
    if (result.size() > max_entries_) {
        result.erase(result.begin(), result.end() - static_cast<std::ptrdiff_t>(max_entries_));
    }
    return result;
}

History::Context History::context_of(std::size_t address) const {
    const std::lock_guard guard(lock_);
    const auto it = contexts_.find(address);
    return it == contexts_.end() ? nullptr : it->second;
}

void History::annotate(const std::vector<std::pair<std::string, std::string>>& values,
                       c10::DeviceIndex device) {
    if (!recording()) { return; }
    c10::CachingDeviceAllocator::AnnotationEntry entry(device, c10::getApproximateTime());
    for (const auto& [name, value] : values) { entry.recordUserMetadata(name, value); }
    const std::lock_guard guard(lock_);
    if (annotations_.size() >= kAnnotationCount) { annotations_.pop_front(); }
    annotations_.push_back(std::move(entry));
}

std::vector<c10::CachingDeviceAllocator::AnnotationEntry> History::annotations() const {
    const auto to_ns = clock().makeConverter();
    const std::lock_guard guard(lock_);
    std::vector<c10::CachingDeviceAllocator::AnnotationEntry> result(annotations_.begin(),
                                                                     annotations_.end());
    for (auto& entry : result) { entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000; }
    return result;
}

}  // namespace gma::bridge
