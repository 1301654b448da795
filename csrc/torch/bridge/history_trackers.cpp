// Trackers: who is told of each event as it happens. See Note [What a tracker may do].
#include "torch/bridge/history_entry.h"
#include "torch/bridge/history_telling.h"

namespace gma::bridge {
namespace {

// A tracker that allocates at each allocation would go on until the stack has no room left.
constexpr int kMostDepth = 32;

}  // namespace

thread_local constinit History::Telling* History::the_telling = nullptr;

void History::add_tracker(Tracker tracker) {
    stop_in_children();
    const std::lock_guard telling(telling_);
    std::vector<Tracker> all = trackers_ != nullptr ? *trackers_ : std::vector<Tracker>();
    all.push_back(std::move(tracker));
    trackers_ = std::make_shared<const std::vector<Tracker>>(std::move(all));
    has_trackers_ = true;
    listening_ = true;
    update_plain();
}

void History::tell(const Telling& telling, const HistoryEntry& entry, const HistoryExtra& extra) {
    const bool is_caused = telling.from() == From::Core && the_cause != nullptr;
    if (is_caused) { the_cause->was_told_ = true; }
    try {
        expand(entry, extra, [&](const TraceEntry& told) {
            for (const Tracker& tracker : telling.trackers()) { tracker(told); }
        });
    } catch (...) {
        if (telling.from() == From::Door) { throw; }
        if (is_caused && the_cause->thrown_ == nullptr) {
            the_cause->thrown_ = std::current_exception();
        }
    }
}

void History::enter_from_tracker() {
    TORCH_CHECK(the_telling->from() == From::Door,
                "gpumem_alloc: a tracker called the allocator while it was told of a segment.\n"
                "The allocator is in the middle of a call there, and has locked what the tracker "
                "asks for.\n"
                "Note what there is to do, and do it after that call; when it is told of an "
                "allocation or a free, a tracker may call.");
    TORCH_CHECK(the_telling->depth() < kMostDepth,
                "gpumem_alloc: trackers called the allocator from within each other, ", kMostDepth,
                " deep.\n"
                "Each call is an event, of which they are told, and call again.\n"
                "Let the tracker leave out what it causes itself.");
    the_telling->let_go();
}

bool History::enter_with_free_from_tracker() noexcept {
    if (the_telling->from() == From::Core) { return false; }
    the_telling->let_go();
    return true;
}

}  // namespace gma::bridge
