// A call of the trackers, while it lasts.
//
// Note [What a tracker may do]
// It is called with the lock that keeps events in order. Of allocations, frees, snapshots and
// running out of memory it is told at the bridge's door, under no lock of the core's: there it may
// call the allocator, as with PyTorch's. Its first call lets the lock go for the rest of the event,
// since who holds a lock of the core's may be waiting for it, to tell of a segment; and what it
// causes is told to it in turn. Of segments, and the ends of frees that waited, it is told under
// the core's lock: a call would wait for itself for ever, so it is refused with an error, and a
// free is put off until the core is done. What a tracker throws goes to the one who called the
// allocator, as far as he allocates or empties the cache; of any other call it is lost.
#pragma once

#include "torch/bridge/history.h"

namespace gma::bridge {

class History::Telling {
public:
    Telling(History& history, From from)
        : lock_(history.telling_),
          trackers_(history.trackers_),
          from_(from),
          outer_(the_telling),
          depth_(outer_ != nullptr ? outer_->depth_ + 1 : 1) {
        the_telling = this;
    }
    ~Telling() { the_telling = outer_; }
    Telling(const Telling&) = delete;
    Telling& operator=(const Telling&) = delete;

    void let_go() {
        if (lock_.owns_lock()) { lock_.unlock(); }
    }
    From from() const { return from_; }
    int depth() const { return depth_; }
    const std::vector<Tracker>& trackers() const { return *trackers_; }

private:
    std::unique_lock<std::mutex> lock_;
    const Trackers trackers_;  // those of now: one may be added meanwhile
    const From from_;
    Telling* const outer_;
    const int depth_;
};

}  // namespace gma::bridge
