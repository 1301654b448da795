#include "core/mapping_thread.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <utility>

namespace gma {
namespace {

// The end of the process: what is under way in all its threads is waited for while the driver still
// works, and from then on there are no jobs. Never destroyed. A forked child has no such threads,
// and another one of these if it makes some.
struct AtExit {
    const ForkGuard fork_guard;
    std::atomic<bool> is_over{false};
    std::atomic<std::uint32_t> job_count{0};  // started and not finished
};

std::atomic<AtExit*> at_exit{nullptr};

void finish_all() {
    AtExit& all = *at_exit.load(std::memory_order_acquire);
    if (all.fork_guard.forked()) { return; }
    all.is_over = true;
    for (std::uint32_t count = all.job_count; count > 0; count = all.job_count) {
        all.job_count.wait(count);
    }
}

// Handlers run in the reverse order of their registration: the driver's, which was made before, is
// later. nullptr: the system registers no more.
AtExit* at_exit_of_process() {
    AtExit* known = at_exit.load(std::memory_order_acquire);
    while (known == nullptr || known->fork_guard.forked()) {
        auto made = std::make_unique<AtExit>();
        if (!at_exit.compare_exchange_strong(known, made.get())) { continue; }
        known = made.release();
        if (std::atexit(finish_all) != 0) { known->is_over = true; }
    }
    return known->is_over ? nullptr : known;
}

}  // namespace

void MappingJob::run(Driver& driver, int device) {
    if (!unmap_chunks(driver, pages, last, chunks).ok()) {
        end = End::OldRefused;
    } else if (fresh_pages == 0) {
        end = End::Unmapped;
    } else if (map_chunks(driver, device, fresh_pages, chunks).ok()) {
        end = End::Mapped;
    } else {
        const bool undone = unmap_chunks(driver, fresh_pages, LastPlace::Keep, chunks).ok();
        end = undone ? End::Unmapped : End::FreshRefused;
    }
}

struct MappingThread::State {
    State(Driver& its_driver, int its_device, AtExit& process)
        : driver(its_driver), device(its_device), all(process) {}

    void work();

    Driver& driver;
    const int device;
    AtExit& all;
    std::mutex mutex;  // guards the two below
    std::deque<MappingJob*> jobs;
    bool is_over = false;
    std::condition_variable has_job;
    std::condition_variable has_finished;
    std::atomic<std::uint64_t> finished{0};  // written under the mutex
};

void MappingThread::State::work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        has_job.wait(lock, [this] { return is_over || !jobs.empty(); });
        if (jobs.empty()) { return; }
        MappingJob* job = jobs.front();
        jobs.pop_front();
        lock.unlock();
        job->run(driver, device);
        lock.lock();
        finished.fetch_add(1, std::memory_order_release);
        has_finished.notify_all();
        all.job_count.fetch_sub(1);
        all.job_count.notify_all();
    }
}

MappingThread::~MappingThread() {
    if (state_ == nullptr || fork_guard_.forked()) { return; }
    const std::lock_guard<std::mutex> guard(state_->mutex);
    state_->is_over = true;
    state_->has_job.notify_all();
}

void* MappingThread::run(void* share) {
    const std::unique_ptr<std::shared_ptr<State>> own(static_cast<std::shared_ptr<State>*>(share));
    (*own)->work();
    return nullptr;
}

// With all signals blocked: those of the program are for its own threads. But not those that tell
// of a mistake, which would then end the process without a word of its handlers.
bool MappingThread::make() {
    AtExit* process = at_exit_of_process();
    if (process == nullptr) { return false; }
    auto state = std::make_shared<State>(driver_, device_, *process);
    auto share = std::make_unique<std::shared_ptr<State>>(state);
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) { return false; }
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    for (const int mistake : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
        sigdelset(&all, mistake);
    }
    pthread_t thread{};
    bool is_made = pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED) == 0 &&
                   pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
    if (is_made) {
        is_made = pthread_create(&thread, &attributes, run, share.get()) == 0;
        static_cast<void>(pthread_sigmask(SIG_SETMASK, &before, nullptr));
    }
    static_cast<void>(pthread_attr_destroy(&attributes));
    if (!is_made) { return false; }
    static_cast<void>(share.release());  // the thread's
    state_ = std::move(state);
    return true;
}

bool MappingThread::has_room() {
    if (is_refused_ || fork_guard_.forked()) { return false; }
    if (state_ == nullptr && !make()) {
        is_refused_ = true;
        return false;
    }
    return !state_->all.is_over && started_ - finished() < kMaxWaiting;
}

void MappingThread::start(MappingJob* job) {
    const std::lock_guard<std::mutex> guard(state_->mutex);
    state_->jobs.push_back(job);
    state_->all.job_count.fetch_add(1);
    ++started_;
    state_->has_job.notify_one();
}

std::uint64_t MappingThread::finished() const {
    return state_ == nullptr ? 0 : state_->finished.load(std::memory_order_acquire);
}

bool MappingThread::wait(std::uint64_t finished) {
    if (state_ == nullptr || finished >= started_ || fork_guard_.forked()) { return false; }
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->has_finished.wait(lock, [&] { return state_->finished.load() > finished; });
    return true;
}

}  // namespace gma
