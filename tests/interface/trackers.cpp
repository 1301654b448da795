// What only C++ can do with PyTorch's memory history: trackers of its events, contexts of one's own
// making, memory at a place that is named.
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

namespace cca = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;

// Action, address and bytes of each event that was told.
struct Told {
    std::int64_t action;
    std::int64_t address;
    std::int64_t bytes;
};
std::mutex lock;
std::vector<Told> told;
std::atomic<int> gathered_count{0};

void note(const TraceEntry& entry) {
    const std::lock_guard guard(lock);
    told.push_back({entry.action_, static_cast<std::int64_t>(entry.addr_),
                    static_cast<std::int64_t>(entry.size_)});
}

struct Context final : c10::GatheredContext {};
std::shared_ptr<c10::GatheredContext> gather() {
    ++gathered_count;
    return std::make_shared<Context>();
}

// Its end comes where a recording ends.
struct AttachingContext final : c10::GatheredContext {
    ~AttachingContext() override { cca::attachAllocatorTraceTracker(note); }
};
std::shared_ptr<c10::GatheredContext> gather_attaching() {
    return std::make_shared<AttachingContext>();
}

std::string last_error;
template <class Call>
const char* error_of(Call&& call) {
    try {
        call();
        return nullptr;
    } catch (const std::exception& error) { return (last_error = error.what()).c_str(); }
}

// What a tracker does at the next event of one action, and what came of it.
enum Deed { Throw, Allocate, Free, AskStatistics, AllocateAlways, WaitForAnother };
std::atomic<int> deed{Throw};
std::atomic<int> at_action{-1};
void* kept = nullptr;
std::string came_of_it = "nothing";

void act(const TraceEntry& entry) {
    if (entry.action_ != at_action) { return; }
    if (deed != AllocateAlways) { at_action = -1; }
    if (deed == Throw) { throw std::runtime_error("a tracker's"); }
    const char* const error = error_of([] {
        if (deed == Free) {
            cca::raw_delete(std::exchange(kept, nullptr));
        } else if (deed == AskStatistics) {
            came_of_it = std::to_string(cca::getDeviceStats(0).allocated_bytes[0].current);
        } else if (deed == WaitForAnother) {
            static_cast<void>(cca::getDeviceStats(0));
            std::thread([] { cca::raw_delete(cca::raw_alloc(100 << 20)); }).join();
        } else {
            cca::raw_delete(cca::raw_alloc(1000));
        }
    });
    if (error != nullptr) {
        came_of_it = error;
        if (deed == AllocateAlways) { throw std::runtime_error(error); }
    } else if (deed != AskStatistics) {
        came_of_it = "done";
    }
}

c10::DataPtr placed;

}  // namespace

extern "C" {

void attach_note() { cca::attachAllocatorTraceTracker(note); }
void attach_act() { cca::attachAllocatorTraceTracker(act); }
void act_at(int action, int what) {
    at_action = action;
    deed = what;
    came_of_it = "nothing";
}
const char* came_of() { return came_of_it.c_str(); }
void keep(std::size_t bytes) { kept = cca::raw_alloc(bytes); }

std::size_t told_events(std::int64_t (*found)[3], std::size_t capacity) {
    const std::lock_guard guard(lock);
    for (std::size_t i = 0; i < told.size() && i < capacity; ++i) {
        found[i][0] = told[i].action;
        found[i][1] = told[i].address;
        found[i][2] = told[i].bytes;
    }
    return std::exchange(told, {}).size();
}

void record(bool attaching) {
    cca::recordHistory(true, attaching ? gather_attaching : gather, 1000, RecordContext::ALL, true,
                       {});
}
void end_record() { cca::recordHistory(false, nullptr, 1, RecordContext::NEVER, false, {}); }
int take_gathered() { return gathered_count.exchange(0); }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
const char* allocate_at(std::size_t bytes, std::size_t address) {
    return error_of(
        [&] { placed = cca::allocateWithAddress(bytes, reinterpret_cast<void*>(address)); });
}
void free_placed() { placed.clear(); }
#endif
}
