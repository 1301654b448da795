#include "core/mapping_thread.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
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

bool MappingJob::leave(Driver& driver) {
    const bool has_left = unmap_chunks(driver, pages, last, chunks).ok();
    end = has_left ? End::Unmapped : End::OldRefused;
    return has_left && fresh_pages != 0;
}

void MappingJob::arrive(Driver& driver, int device) {
    if (map_chunks(driver, device, fresh_pages, chunks).ok()) {
        end = End::Mapped;
    } else if (!unmap_chunks(driver, fresh_pages, LastPlace::Keep, chunks).ok()) {
        end = End::FreshRefused;
    }
}

void MappingQueue::push(MappingJob* job) {
    job->next = nullptr;
    (last_ == nullptr ? first_ : last_->next) = job;
    last_ = job;
    ++size_;
}

std::size_t MappingQueue::position(const MappingJob* job) const {
    std::size_t position = 0;
    for (const MappingJob* at = first_; at != job && at != nullptr; at = at->next) { ++position; }
    return position;
}

void MappingQueue::remove(MappingJob* job) {
    MappingJob* previous = nullptr;
    for (MappingJob* at = first_; at != job; at = at->next) { previous = at; }
    (previous == nullptr ? first_ : previous->next) = job->next;
    if (last_ == job) { last_ = previous; }
    --size_;
}

MappingJob* MappingQueue::pop() {
    MappingJob* const job = first_;
    if (job == nullptr) { return nullptr; }
    first_ = job->next;
    if (first_ == nullptr) { last_ = nullptr; }
    --size_;
    return job;
}

struct MappingThread::State {
    State(Driver& its_driver, int its_device, AtExit& process)
        : driver(its_driver), device(its_device), all(process) {}

    void work();
    void end_one() {
        all.job_count.fetch_sub(1);
        all.job_count.notify_all();
    }
    // A step of a job, when nobody else wants to call the driver. True: another one follows.
    bool step(MappingJob& job, bool leaves);

    Driver& driver;
    const int device;
    AtExit& all;
    std::mutex calling;                     // held by whoever calls the driver
    std::atomic<std::uint32_t> callers{0};  // of the others, calling or about to
    std::mutex mutex;                       // guards the four below
    MappingQueue leaving;
    MappingQueue arriving;
    MappingQueue ended;
    bool is_over = false;
    std::condition_variable has_job;
    std::condition_variable has_finished;
    std::atomic<std::uint64_t> ended_count{0};  // written under the mutex
};

void MappingThread::State::work() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        has_job.wait(lock, [this] { return is_over || !leaving.empty() || !arriving.empty(); });
        const bool leaves = !leaving.empty();
        MappingJob* const job = (leaves ? leaving : arriving).pop();
        if (job == nullptr) { return; }
        lock.unlock();
        const bool goes_on = step(*job, leaves);
        lock.lock();
        if (goes_on) {
            arriving.push(job);
            continue;
        }
        ended.push(job);
        ended_count.fetch_add(1, std::memory_order_release);
        has_finished.notify_all();
        end_one();
    }
}

bool MappingThread::State::step(MappingJob& job, bool leaves) {
    for (std::uint32_t count = callers; count > 0; count = callers) { callers.wait(count); }
    const std::lock_guard<std::mutex> guard(calling);
    if (leaves) { return job.leave(driver); }
    job.arrive(driver, device);
    return false;
}

MappingThread::Turn::Turn(MappingThread& thread)
    : state_(thread.fork_guard_.forked() ? nullptr : thread.state_.get()) {
    if (state_ == nullptr) { return; }
    state_->callers.fetch_add(1);
    state_->calling.lock();
}

MappingThread::Turn::~Turn() {
    if (state_ == nullptr) { return; }
    state_->calling.unlock();
    if (state_->callers.fetch_sub(1) == 1) { state_->callers.notify_all(); }
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
    const std::uint64_t ended = state_->ended_count.load(std::memory_order_acquire);
    return !state_->all.is_over && started_ - taken_ - ended < kMaxWaiting;
}

void MappingThread::start(MappingJob* job) {
    const std::lock_guard<std::mutex> guard(state_->mutex);
    state_->leaving.push(job);
    state_->all.job_count.fetch_add(1);
    ++started_;
    state_->has_job.notify_one();
}

MappingQueue MappingThread::take_finished() {
    if (state_ == nullptr) { return {}; }
    if (state_->ended_count.load(std::memory_order_acquire) == 0) { return {}; }
    const std::lock_guard<std::mutex> guard(state_->mutex);
    taken_ += state_->ended_count.exchange(0);
    return std::exchange(state_->ended, {});
}

bool MappingThread::take_back(MappingJob* job) {
    if (state_ == nullptr || fork_guard_.forked()) { return false; }
    const std::lock_guard<std::mutex> guard(state_->mutex);
    MappingQueue& leaving = state_->leaving;
    MappingQueue& arriving = state_->arriving;
    const std::size_t left = leaving.size();
    const std::size_t place = arriving.position(job);
    const bool arrives = place < arriving.size();
    if (!arrives && leaving.position(job) == left) { return false; }
    if ((arrives ? left + place : left + arriving.size()) <= kSoonSteps) { return false; }
    (arrives ? arriving : leaving).remove(job);
    ++taken_;
    state_->end_one();
    return true;
}

bool MappingThread::wait_finished() {
    if (state_ == nullptr || taken_ == started_ || fork_guard_.forked()) { return false; }
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->has_finished.wait(lock, [this] { return !state_->ended.empty(); });
    return true;
}

}  // namespace gma
