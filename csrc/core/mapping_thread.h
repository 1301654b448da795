// A thread that moves handles from the window they were freed in to one that nobody has had, so
// that neither the free nor the next allocation waits for the driver (unmap 20 µs, map and set
// access 30, and twice that in a process that is busy).
//
// It takes one job after the other and knows nothing but what is in them: what a job's end means is
// its owner's business, who asks finished() and keeps the job until then. The thread is made with
// the first job and belongs to nobody: it holds its own share of the state, so that a process may
// end while it sleeps. While it works exit() waits, since the driver ends there too; afterwards
// there is no room. A forked child has no such thread: it has no room, and wait() returns.
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

    void run(Driver& driver, int device);
};

class MappingThread {
public:
    // More than this do not wait: the caller would rather do it itself meanwhile.
    static constexpr std::uint64_t kMaxWaiting = 16;

    MappingThread(Driver& driver, int device) : driver_(driver), device_(device) {}
    // All jobs are finished.
    ~MappingThread();
    MappingThread(const MappingThread&) = delete;
    MappingThread& operator=(const MappingThread&) = delete;

    bool has_room();
    // Only with room. The job stays where it is until it is finished.
    void start(MappingJob* job);
    // How many are, since the beginning; they end in the order of their starts.
    std::uint64_t finished() const;
    // Until more than `finished` are. False: they never will be.
    bool wait(std::uint64_t finished);

private:
    struct State;
    static void* run(void* share);
    bool make();

    Driver& driver_;
    const int device_;
    const ForkGuard fork_guard_;
    std::shared_ptr<State> state_;  // nullptr: no thread yet
    bool is_refused_ = false;       // the system gave none
    std::uint64_t started_ = 0;
};

}  // namespace gma
