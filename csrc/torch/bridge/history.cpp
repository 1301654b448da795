#include "torch/bridge/history.h"

#include <c10/util/ApproximateClock.h>

#include <algorithm>

#include "base/trace_record.h"

namespace gma::bridge {
namespace {

using TraceEntry = History::TraceEntry;

thread_local const History::Context* the_cause = nullptr;
thread_local std::vector<History::Text> compile_contexts;
thread_local History::Text metadata_of_thread;

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
        oldest_.clear();
        annotations_.clear();
    }
    if (!settings.enabled) { contexts_.clear(); }
    for (std::size_t device = 0; device < rings_.size(); ++device) {  // keep the newest
        Ring& ring = rings_[device];
        std::rotate(ring.begin(), ring.begin() + static_cast<std::ptrdiff_t>(oldest_[device]),
                    ring.end());
        oldest_[device] = 0;
        if (ring.size() > max_entries_) {
            ring.erase(ring.begin(), ring.end() - static_cast<std::ptrdiff_t>(max_entries_));
        }
    }
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
    append_locked(event, context);
}

void History::note_allocation(const Event& event, Context context) {
    const std::lock_guard guard(lock_);
    append_locked(event, context);
    if (context != nullptr) { contexts_[event.address] = std::move(context); }
}

void History::note_free(Event event, bool completes, Context context) {
    Context allocated_by;  // let go outside the lock
    {
        const std::lock_guard guard(lock_);
        if (auto it = contexts_.find(event.address); it != contexts_.end()) {
            allocated_by = std::move(it->second);
            contexts_.erase(it);
        }
        const Context& shown = context != nullptr ? context : allocated_by;
        append_locked(event, shown);
        if (completes) {
            event.action = TraceEntry::FREE_COMPLETED;
            append_locked(event, shown);
        }
    }
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
        append_locked(event, the_cause != nullptr ? *the_cause : nullptr);
    } catch (...) {  // the host is out of memory: the event is lost, the allocator is not
    }
}

void History::note_annotation(const Event& event, const std::string& metadata, Context context) {
    if (!listening()) { return; }
    const auto text = std::make_shared<const std::string>(metadata);
    const std::lock_guard guard(lock_);
    append_locked(event, context, text);
}

void History::append_locked(const Event& event, const Context& context) {
    append_locked(event, context, metadata_of_thread);
}

void History::append_locked(const Event& event, const Context& context, const Text& metadata) {
    const bool keep_context = when_.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
    Entry entry{event, c10::getApproximateTime(), keep_context ? context : nullptr,
                compile_contexts.empty() ? nullptr : compile_contexts.back(), metadata};
    if (!trackers_.empty()) {
        const TraceEntry told = trace_entry(entry);
        for (const auto& tracker : trackers_) { tracker(told); }
    }
    if (!recording() || skipped(event.action)) { return; }
    const auto device = static_cast<std::size_t>(event.device);
    if (device >= rings_.size()) {
        rings_.resize(device + 1);
        oldest_.resize(device + 1, 0);
    }
    Ring& ring = rings_[device];
    if (ring.size() < max_entries_) {
        ring.push_back(std::move(entry));
        return;
    }
    std::size_t& oldest = oldest_[device];
    ring[oldest] = std::move(entry);
    oldest = (oldest + 1) % ring.size();
}

TraceEntry History::trace_entry(const Entry& entry) const {
    return TraceEntry(entry.event.action, entry.event.device, entry.event.address,
                      entry.event.bytes, entry.event.stream, entry.event.pool, entry.time,
                      entry.context,
                      entry.compile_context != nullptr ? *entry.compile_context : kNoCompileContext,
                      entry.metadata != nullptr ? *entry.metadata : "");
}

std::vector<TraceEntry> History::entries(c10::DeviceIndex device) const {
    const auto to_ns = clock().makeConverter();
    const std::lock_guard guard(lock_);
    std::vector<TraceEntry> result;
    const auto index = static_cast<std::size_t>(device);
    if (index >= rings_.size()) { return result; }
    const Ring& ring = rings_[index];
    result.reserve(ring.size());
    for (std::size_t i = 0; i < ring.size(); ++i) {
        result.push_back(trace_entry(ring[(oldest_[index] + i) % ring.size()]));
        auto& time = result.back().time_;
        time.t_ = to_ns(time.approx_t_) / 1000;
    }
    return result;
}

History::Context History::context_of(std::size_t address) const {
    const std::lock_guard guard(lock_);
    const auto it = contexts_.find(address);
    return it == contexts_.end() ? nullptr : it->second;
}

void History::push_compile_context(std::string context) {
    compile_contexts.push_back(std::make_shared<const std::string>(std::move(context)));
}
void History::pop_compile_context() {
    if (!compile_contexts.empty()) { compile_contexts.pop_back(); }
}

void History::set_metadata(const std::string& metadata) {
    metadata_of_thread = metadata.empty() ? nullptr : std::make_shared<const std::string>(metadata);
}

std::string History::metadata() { return metadata_of_thread != nullptr ? *metadata_of_thread : ""; }

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
