// Memory history as torch records it: the last so many events of each device, with the contexts
// that torch gathers, and trackers that are told of each event as it happens.
//
// Allocations and frees are noted at the bridge's door. What happens inside the core (segments, the
// end of frees that waited) comes through EventSink, under the core's lock: contexts are never
// gathered there, since that takes Python's lock; the door's own is lent by Cause.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/allocator.h"
#include "torch/bridge/brief_lock.h"
#include "torch/bridge/history_ring.h"
#include "torch/bridge/torch_version.h"

namespace gma::bridge {

class History final : public EventSink {
public:
    using TraceEntry = c10::CachingDeviceAllocator::TraceEntry;
    using RecordContext = c10::CachingDeviceAllocator::RecordContext;
    using Context = std::shared_ptr<c10::GatheredContext>;

    struct Event {
        TraceEntry::Action action;
        c10::DeviceIndex device;
        std::size_t address;
        std::size_t bytes;
        void* stream;
        c10::MempoolId_t pool;
    };

    // While it lives, what this thread's call causes inside the core has this context, and what a
    // tracker throws there is kept: nothing may be thrown through the core.
    class Cause {
    public:
        explicit Cause(const Context& context) : context_(context), outer_(the_cause) {
            the_cause = this;
        }
        ~Cause() { the_cause = outer_; }
        Cause(const Cause&) = delete;
        Cause& operator=(const Cause&) = delete;
        // Whether a tracker was told of anything.
        bool was_told() const { return was_told_; }
        void rethrow() const {
            if (thrown_ != nullptr) { std::rethrow_exception(thrown_); }
        }

    private:
        friend class History;
        const Context& context_;
        Cause* const outer_;
        std::exception_ptr thrown_;
        bool was_told_ = false;
    };

    // Notes a free as the core does it (Allocator::free_observed). Made before, since to gather the
    // context takes Python's lock; and gone after, with what the entry has pushed out.
    class ObservedFree final : public EventSink {
    public:
        explicit ObservedFree(History& history) noexcept;
        void note(const TraceRecord& block) noexcept override;
        // Once the block is freed. False: there was none.
        bool was_told() const { return device_ >= 0; }
        std::size_t bytes() const { return bytes_; }
        c10::DeviceIndex device() const { return device_; }

    private:
        History& history_;
        std::size_t bytes_ = 0;
        c10::DeviceIndex device_ = -1;
        HistoryExtra extra_;
        Context allocated_by_;
    };

    // Whether anything is to be noted: one relaxed load.
    bool listening() const { return listening_.load(std::memory_order_relaxed); }
    bool recording() const { return recording_.load(std::memory_order_relaxed); }
    bool has_trackers() const { return has_trackers_.load(std::memory_order_relaxed); }
    // At the start of each call of the allocator; see Note [What a tracker may do]. Throws where it
    // may not call.
    static void enter() {
        if (the_telling != nullptr) [[unlikely]] { enter_from_tracker(); }
    }
    // The same for a free, which cannot throw: false where it is to be put off.
    static bool enter_with_free() noexcept {
        return the_telling == nullptr || enter_with_free_from_tracker();
    }

    struct Settings {
        bool enabled = false;
        c10::CachingDeviceAllocator::CreateContextFn gather = nullptr;
        std::size_t max_entries = 1;
        RecordContext when = RecordContext::NEVER;
        bool clear = false;
        std::vector<std::string> skip_actions;
    };
    void set(const Settings& settings);
    using Tracker = c10::CachingDeviceAllocator::AllocatorTraceTracker;
    void add_tracker(Tracker tracker);

    // The caller's context, if one is wanted at this level. Takes Python's lock: hold none of ours.
    Context gather(RecordContext level) const {
        return when_.load(std::memory_order_relaxed) < level ? nullptr : gather_now();
    }
    void note(const Event& event, Context&& context);
    void note_allocation(const Event& event, Context&& context);
    // Of an allocated block as the core describes it, before its memory can be anybody else's. For
    // trackers; without any ObservedFree costs less.
    void note_free(const TraceRecord& block, Context&& context);
    void note_annotation(const Event& event, const std::string& metadata, Context&& context);
    void note(const TraceRecord& record) noexcept override;

    void push_compile_context(std::string context);
    void pop_compile_context();
    // Of the calling thread.
    static void label_with(const std::shared_ptr<const Labels>* labels) { the_labels = labels; }
    static void set_metadata(const std::string& metadata);
    static std::string metadata();
    void annotate(const std::vector<std::pair<std::string, std::string>>& values,
                  c10::DeviceIndex device);

    Context context_of(std::size_t address) const;
    // Oldest first, with times in microseconds since 1970.
    std::vector<TraceEntry> entries(c10::DeviceIndex device) const;
    std::vector<c10::CachingDeviceAllocator::AnnotationEntry> annotations() const;

private:
    class Telling;

    // Of the thread; plain data, which costs no guard and no call to look at.
    static thread_local constinit Cause* the_cause __attribute__((tls_model("initial-exec")));
    // The tracker's call that the thread is in.
    static thread_local constinit Telling* the_telling __attribute__((tls_model("initial-exec")));
    // What the thread's events are labelled with; null where they are not.
    static thread_local constinit const std::shared_ptr<const Labels>* the_labels
        __attribute__((tls_model("initial-exec")));

    using Trackers = std::shared_ptr<const std::vector<Tracker>>;
    // A free that completes at once is told as two events.
    enum class Completes : std::uint8_t { No, Yes };
    // Under no lock of the core's, or under its device's.
    enum class From : std::uint8_t { Door, Core };
    // Multiplies: addresses of blocks end in the same bits.
    struct AddressHash {
        using hash_policy = ska::fibonacci_hash_policy;
        std::size_t operator()(std::size_t address) const { return address / 512; }
    };

    // Most events need no more than a slot: none is left out or told, and none keeps a context.
    bool is_plain() const { return plain_.load(std::memory_order_relaxed); }
    void update_plain();
    // The processor may read its clock before it has the lock: times never go back.
    c10::approx_time_t now_locked() {
        return last_time_ = std::max(last_time_, c10::getApproximateTime());
    }
    HistoryEntry* plain_slot_locked(c10::DeviceIndex device);
    Context gather_now() const;
    static Completes completes_of(const TraceRecord& block) {
        return block.action == Action::Free ? Completes::Yes : Completes::No;
    }
    // What is not plain, out of the way of what is.
    void append_allocation(const Event& event, Context&& context);
    void note_observed(const TraceRecord& block, HistoryExtra& extra, Context& allocated_by);
    void push_observed_locked(const TraceRecord& block, HistoryExtra& extra,
                              Context&& allocated_by);
    // Under the lock `place_context` gets what is to keep the entry's context, or null.
    template <class PlaceContext>
    void append(From from, const Event& event, Completes completes,
                const std::shared_ptr<const Labels>* labels, PlaceContext&& place_context);
    void push_locked(const Event& event, Completes completes, c10::approx_time_t time,
                     HistoryExtra& extra);
    void take_context_locked(std::size_t address, Context& taken);
    static void tell(const Telling& telling, const HistoryEntry& entry, const HistoryExtra& extra);
    static void enter_from_tracker();
    static bool enter_with_free_from_tracker() noexcept;
    void stop_in_children();
    bool skipped(TraceEntry::Action action) const {
        return (skipped_.load(std::memory_order_relaxed) >> action & 1U) != 0;
    }

    std::atomic<bool> listening_{false};
    std::atomic<bool> recording_{false};
    std::atomic<bool> has_trackers_{false};
    std::atomic<bool> plain_{false};
    std::atomic<std::uint32_t> skipped_{0};  // bits by action
    std::atomic<c10::CachingDeviceAllocator::CreateContextFn> gather_{nullptr};
    std::atomic<RecordContext> when_{RecordContext::NEVER};

    // Of the trackers, which are called under it: so they see events in the order of the rings.
    std::mutex telling_;
    Trackers trackers_;  // another vector with each tracker: one may come while others are called

    mutable BriefLock lock_;  // of what follows; taken after telling_
    c10::approx_time_t last_time_ = 0;
    std::size_t max_entries_ = 1;
    std::vector<HistoryRing> rings_;                                        // by device
    ska::flat_hash_map<std::size_t, Context, AddressHash> contexts_;        // of allocated blocks
    std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;  // the newest
};

}  // namespace gma::bridge
