#include "core/regions.h"

#include <utility>

namespace gma {
namespace {

// Plain data beside it, so that it can be asked for while the thread ends.
thread_local constinit std::atomic<bool>* own_mark = nullptr;

struct ThreadMark {
    std::shared_ptr<std::atomic<bool>> lives = std::make_shared<std::atomic<bool>>(true);
    ThreadMark() { own_mark = lives.get(); }
    ~ThreadMark() {
        own_mark = nullptr;
        *lives = false;
    }
};

std::shared_ptr<std::atomic<bool>> mark_of_this_thread() {
    thread_local ThreadMark mark;
    return mark.lives;
}

}  // namespace

bool Regions::Region::is_for(Threads threads) const {
    return threads == Threads::All ? thread == nullptr
                                   : thread != nullptr && thread.get() == own_mark;
}

void Regions::begin(Isolation level, Threads threads) {
    const std::lock_guard guard(mutex_);
    open_.push_back({threads == Threads::All ? nullptr : mark_of_this_thread(), level});
    count_ = open_.size();
}

bool Regions::end(Threads threads) {
    const std::lock_guard guard(mutex_);
    const auto it = std::find_if(open_.rbegin(), open_.rend(),
                                 [&](const Region& region) { return region.is_for(threads); });
    if (it == open_.rend()) { return false; }
    open_.erase(std::next(it).base());
    count_ = open_.size();
    return true;
}

Isolation Regions::current() const {
    if (!any()) { return Isolation::Off; }
    const std::lock_guard guard(mutex_);
    std::erase_if(open_, [](const Region& region) {
        return region.thread != nullptr && !region.thread->load();
    });
    count_ = open_.size();
    for (const Threads threads : {Threads::This, Threads::All}) {
        const auto it = std::find_if(open_.rbegin(), open_.rend(),
                                     [&](const Region& region) { return region.is_for(threads); });
        if (it != open_.rend()) { return it->level; }
    }
    return Isolation::Off;
}

}  // namespace gma
