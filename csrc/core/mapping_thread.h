// A thread that moves handles from the window they were freed in to one that nobody has had, so
// that neither the free nor the next allocation waits for the driver (unmap 20 µs, map and set
// access 30, and twice that in a process that is busy).
//
// A job is two steps, out of the old window and into the fresh one. It takes a step after the
// other, those out first: what was freed is to be gone soon, and a program that asks for memory in
// bursts lets it catch up with the others between them. It knows nothing but what is in the jobs:
// what a job's end means is its owner's business, who keeps it until take_finished() gives it back.
// The thread is made with the first job and belongs to nobody: it holds its own share of the state,
// so that a process may end while it sleeps. While it works exit() waits, since the driver ends
// there too; afterwards there is no room. A forked child has no such thread: it has no room, and
// nothing is waited for or taken back.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/fork_guard.h"
#include "core/guarded_chunk.h"

namespace gma {

struct MappingJob {
    enum class End : std::uint8_t {
        Unmapped,      // the handles are mapped nowhere
        Mapped,        // at fresh_pages
        OldRefused,    // the driver did not unmap all of them where they were
        FreshRefused,  // nor where they could not be mapped whole
    };

    Address pages = 0;                 // where they are
    LastPlace last = LastPlace::Keep;  // whether that is noted
    Address fresh_pages = 0;           // where they go; 0: nowhere
    std::vector<GuardedChunk> chunks;
    End end = End::Unmapped;
    MappingJob* next = nullptr;  // in the queue that it is in

    // Out of where they are. False: this was all.
    bool leave(Driver& driver);
    // To fresh_pages.
    void arrive(Driver& driver, int device);
};

// First come, first served. Allocates nothing.
class MappingQueue {
public:
    bool empty() const { return first_ == nullptr; }
    void push(MappingJob* job);
    MappingJob* pop();
    std::size_t size() const { return size_; }
    // How many are before it; size() if it is not in the queue.
    std::size_t position(const MappingJob* job) const;
    // One that is in it.
    void remove(MappingJob* job);

private:
    MappingJob* first_ = nullptr;
    MappingJob* last_ = nullptr;
    std::size_t size_ = 0;
};

class MappingThread {
    struct State;

public:
    // While one lives the thread begins no call of the driver. Two that ask it at a time cost each
    // other far more than they gain: beside the thread a create takes 570 us instead of 12.
    class Turn {
    public:
        explicit Turn(MappingThread& thread);
        ~Turn();
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

    private:
        State* const state_;  // nullptr: there is no thread
    };

    // More than this do not wait: the caller would rather do it itself meanwhile.
    static constexpr std::uint64_t kMaxWaiting = 1'024;
    // Steps that end sooner than the caller would have done the rest of a job.
    static constexpr std::size_t kSoonSteps = 2;

    MappingThread(Driver& driver, int device) : driver_(driver), device_(device) {}
    // All jobs are finished.
    ~MappingThread();
    MappingThread(const MappingThread&) = delete;
    MappingThread& operator=(const MappingThread&) = delete;

    bool has_room();
    // Only with room. The job stays where it is until it is finished.
    void start(MappingJob* job);
    // Those that ended since the last call, in the order in which they did.
    MappingQueue take_finished();
    // A job that was started, for the caller to do the rest of; it will not be finished. False: it
    // is under way, or so soon that to wait costs less.
    bool take_back(MappingJob* job);
    // Until take_finished() has one to give. False: it never will.
    bool wait_finished();

private:
    static void* run(void* share);
    bool make();

    Driver& driver_;
    const int device_;
    const ForkGuard fork_guard_;
    std::shared_ptr<State> state_;  // nullptr: no thread yet
    bool is_refused_ = false;       // the system gave none
    std::uint64_t started_ = 0;
    std::uint64_t taken_ = 0;  // of those, given back finished or not
};

}  // namespace gma
