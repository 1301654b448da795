#include "torch/bridge/history.h"

#include <c10/util/ApproximateClock.h>

#include <algorithm>

#include "base/trace_record.h"

namespace gma::bridge {
namespace {

using TraceEntry = History::TraceEntry;

thread_local const History::Context* the_cause = nullptr;

// What the thread's events are labelled with: plain data, which costs no guard to look at.
thread_local constinit const std::shared_ptr<const Labels>* the_labels = nullptr;

struct ThreadLabels {
    ThreadLabels() = default;
    ThreadLabels(const ThreadLabels&) = delete;
    ThreadLabels& operator=(const ThreadLabels&) = delete;
    ~ThreadLabels() { the_labels = nullptr; }  // other things of the thread may still be freed

    std::vector<std::string> compile_contexts;
    std::string metadata;
    std::shared_ptr<const Labels> current;
};

ThreadLabels& thread_labels() {
    static thread_local ThreadLabels labels;
    return labels;
}

constexpr const char* kNoCompileContext = "N/A";  // what torch's viewers expect
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

History::Cause::Cause(const Context& context) : outer_(the_cause) { the_cause = &context; }
History::Cause::~Cause() { the_cause = outer_; }

void History::set(const Settings& settings) {
    TORCH_CHECK(settings.when == RecordContext::NEVER || settings.gather != nullptr,
                "recording with contexts needs a function that gathers them");
    const std::uint32_t skipped = bits_of(settings.skip_actions);
    const std::lock_guard guard(lock_);
    static_cast<void>(clock());  // its first reading precedes the first event
    recording_ = settings.enabled;
    gather_ = settings.enabled ? settings.gather : nullptr;
    when_ = settings.enabled ? settings.when : RecordContext::NEVER;
    max_entries_ = std::max<std::size_t>(settings.max_entries, 1);
    skipped_ = skipped;
    if (!settings.enabled || settings.clear) {
        rings_.clear();
        annotations_.clear();
    }
    if (!settings.enabled) { contexts_.clear(); }
    for (HistoryRing& ring : rings_) { ring.set_capacity(max_entries_); }
    listening_ = settings.enabled || !trackers_.empty();
}

void History::add_tracker(c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) {
    const std::lock_guard guard(lock_);
    trackers_.push_back(std::move(tracker));
    listening_ = true;
}

History::Context History::gather(RecordContext level) const {
    if (when_.load(std::memory_order_relaxed) < level) { return nullptr; }
    const auto function = gather_.load(std::memory_order_relaxed);
    return function != nullptr ? function() : nullptr;
}

void History::note(const Event& event, Context context) {
    if (!listening()) { return; }
    const std::lock_guard guard(lock_);
    append_locked(event, context, Completes::No);
}

void History::note_allocation(const Event& event, Context context) {
    const std::lock_guard guard(lock_);
    append_locked(event, context, Completes::No);
    if (context != nullptr) { contexts_[event.address] = std::move(context); }
}

void History::note_free(const Event& event, bool completes, Context context) {
    Context allocated_by;  // let go outside the lock
    const std::lock_guard guard(lock_);
    if (auto it = contexts_.find(event.address); it != contexts_.end()) {
        allocated_by = std::move(it->second);
        contexts_.erase(it);
    }
    append_locked(event, context != nullptr ? context : allocated_by,
                  completes ? Completes::Yes : Completes::No);
}

void History::note(const TraceRecord& record) noexcept {
    if (!listening()) { return; }
    try {
        const Event event{action_of(record.action),
                          static_cast<c10::DeviceIndex>(record.device),
                          record.address,
                          record.bytes,
                          reinterpret_cast<void*>(record.stream),
                          {record.pool_first, record.pool_second}};
        const std::lock_guard guard(lock_);
        append_locked(event, the_cause != nullptr ? *the_cause : nullptr, Completes::No);
    } catch (...) {  // the host is out of memory: the event is lost, the allocator is not
    }
}

void History::note_annotation(const Event& event, const std::string& metadata, Context context) {
    if (!listening()) { return; }
    const auto labels = std::make_shared<const Labels>(Labels{kNoCompileContext, metadata});
    const std::lock_guard guard(lock_);
    append_locked(event, context, Completes::No, labels);
}

void History::append_locked(const Event& event, const Context& context, Completes completes) {
    static const std::shared_ptr<const Labels> kNone;
    append_locked(event, context, completes, the_labels != nullptr ? *the_labels : kNone);
}

void History::append_locked(const Event& event, const Context& context, Completes completes,
                            const std::shared_ptr<const Labels>& labels) {
    HistoryEntry entry;
    entry.address = event.address;
    entry.bytes = event.bytes;
    entry.stream = event.stream;
    entry.time = c10::getApproximateTime();
    if (when_.load(std::memory_order_relaxed) >= RecordContext::ALLOC) { entry.context = context; }
    entry.labels = labels;
    entry.pool_first = static_cast<std::uint32_t>(event.pool.first);
    entry.pool_second = static_cast<std::uint32_t>(event.pool.second);
    entry.action = static_cast<std::uint8_t>(event.action);
    entry.device = static_cast<std::int8_t>(event.device);
    entry.completes = completes == Completes::Yes;
    if (!trackers_.empty()) { tell_locked(entry); }
    if (!recording()) { return; }
    const bool skips_end = entry.completes && skipped(TraceEntry::FREE_COMPLETED);
    if (skipped(event.action)) {
        if (!entry.completes || skips_end) { return; }
        entry.action = TraceEntry::FREE_COMPLETED;
        entry.completes = false;
    } else if (skips_end) {
        entry.completes = false;
    }
    const auto device = static_cast<std::size_t>(event.device);
    while (device >= rings_.size()) { rings_.emplace_back().set_capacity(max_entries_); }
    rings_[device].push(std::move(entry));
}

namespace {

TraceEntry trace_entry(const HistoryEntry& entry, TraceEntry::Action action) {
    return TraceEntry(action, entry.device, entry.address, entry.bytes, entry.stream,
                      {entry.pool_first, entry.pool_second}, entry.time, entry.context,
                      entry.labels != nullptr ? entry.labels->compile_context : kNoCompileContext,
                      entry.labels != nullptr ? entry.labels->metadata : "");
}

// As torch has it: one entry for each action.
template <class Use>
void expand(const HistoryEntry& entry, Use&& use) {
    use(trace_entry(entry, static_cast<TraceEntry::Action>(entry.action)));
    if (entry.completes) { use(trace_entry(entry, TraceEntry::FREE_COMPLETED)); }
}

}  // namespace

void History::tell_locked(const HistoryEntry& entry) const {
    expand(entry, [this](const TraceEntry& told) {
        for (const auto& tracker : trackers_) { tracker(told); }
    });
}

std::vector<TraceEntry> History::entries(c10::DeviceIndex device) const {
    const auto to_ns = clock().makeConverter();
    const std::lock_guard guard(lock_);
    std::vector<TraceEntry> result;
    const auto index = static_cast<std::size_t>(device);
    if (index >= rings_.size()) { return result; }
    result.reserve(2 * rings_[index].size());
    rings_[index].for_each([&](const HistoryEntry& entry) {
        expand(entry, [&](TraceEntry&& told) {
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

namespace {

void renew_labels(ThreadLabels& thread) {
    const bool none = thread.compile_contexts.empty() && thread.metadata.empty();
    thread.current = none ? nullptr
                          : std::make_shared<const Labels>(Labels{
                                thread.compile_contexts.empty() ? kNoCompileContext
                                                                : thread.compile_contexts.back(),
                                thread.metadata});
    the_labels = none ? nullptr : &thread.current;
}

}  // namespace

void History::push_compile_context(std::string context) {
    ThreadLabels& thread = thread_labels();
    thread.compile_contexts.push_back(std::move(context));
    renew_labels(thread);
}
void History::pop_compile_context() {
    ThreadLabels& thread = thread_labels();
    if (thread.compile_contexts.empty()) { return; }
    thread.compile_contexts.pop_back();
    renew_labels(thread);
}

void History::set_metadata(const std::string& metadata) {
    ThreadLabels& thread = thread_labels();
    thread.metadata = metadata;
    renew_labels(thread);
}

std::string History::metadata() { return thread_labels().metadata; }

void History::annotate(const std::vector<std::pair<std::string, std::string>>& values,
                       c10::DeviceIndex device) {
    if (!recording()) { return; }
    c10::CachingDeviceAllocator::AnnotationEntry entry(device, c10::getApproximateTime());
    for (const auto& [name, value] : values) { entry.recordUserMetadata(name, value); }
    const std::lock_guard guard(lock_);
    if (annotations_.size() >= kAnnotationCount) { annotations_.erase(annotations_.begin()); }
    annotations_.push_back(std::move(entry));
}

std::vector<c10::CachingDeviceAllocator::AnnotationEntry> History::annotations() const {
    const auto to_ns = clock().makeConverter();
    const std::lock_guard guard(lock_);
    auto result = annotations_;
    for (auto& entry : result) { entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000; }
    return result;
}

}  // namespace gma::bridge
