#include "torch/microbench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "driver/host_driver.h"
#include "torch/door_errors.h"
#include "torch/process_allocator.h"
#include "torch/stock_door.h"

namespace gma {
namespace {

constexpr int kDevice = 0;
constexpr int kRepetitions = 5;
constexpr std::uint64_t kWarmUpPairs = 64;
constexpr Bytes kSizes[] = {512_B, 4_KiB, 64_KiB, 1_MiB, 4_MiB, 64_MiB};
constexpr std::size_t kLiveCounts[] = {10'000, 1'000'000};
constexpr int kThreadCounts[] = {1, 2, 4, 8};

double now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<double>(std::chrono::nanoseconds(now).count());
}

// Keeps the compiler from seeing that a pair of malloc and free does nothing.
void escape(void* pointer) { asm volatile("" : : "g"(pointer) : "memory"); }

// Wall nanoseconds per call of `pair`: as many calls as fit the time, the best of a few goes.
template <class Pair>
double best_pair_ns(double seconds, Pair pair) {
    const double budget_ns = seconds * 1e9 / kRepetitions;
    std::uint64_t count = kWarmUpPairs;
    double took_ns = 0.0;
    const auto go = [&] {
        const double start = now_ns();
        for (std::uint64_t i = 0; i < count; ++i) { pair(); }
        took_ns = now_ns() - start;
    };
    for (go(); took_ns < budget_ns / 4; go()) { count *= 2; }
    double best_ns = took_ns;
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
        go();
        best_ns = std::min(best_ns, took_ns);
    }
    return best_ns / static_cast<double>(count);
}

HostDriverConfig free_of_charge() {
    HostDriverConfig config;
    config.memory = HostMemory::AddressesOnly;
    config.timeline = HostTimeline::Clock;
    config.costs = HostCosts::Free;
    config.capacity_bytes = 64_GiB;
    config.lag_ns = 0;
    return config;
}

void* allocate(Bytes bytes) { return gma_malloc(bytes, kDevice, nullptr); }
void release(void* pointer, Bytes bytes) { gma_free(pointer, bytes, kDevice, nullptr); }
void pair(Bytes bytes) { release(allocate(bytes), bytes); }

// The entry points over a driver whose calls cost nothing. A measurement that did not do its work
// is reported instead of a number: gma_malloc throws, and what gma_free kept is asked for.
class Bench {
public:
    Bench() = default;
    ~Bench() {
        for (void* const pointer : live_) { release(pointer, kUnitBytes); }
    }
    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;

    void add_live(std::size_t count) {
        live_.reserve(count);
        while (live_.size() < count) { live_.push_back(allocate(kUnitBytes)); }
    }

    // Every thread does the same number of pairs; the wall time of all divided by that number.
    double threads_pair_ns(int thread_count, double seconds) {
        const double one_ns = best_pair_ns(seconds / 4, [] { pair(kUnitBytes); });
        const auto pairs = static_cast<std::uint64_t>(
            std::max(seconds * 1e9 / kRepetitions / std::max(one_ns, 1.0), 1000.0));
        double best_ns = std::numeric_limits<double>::max();
        for (int repetition = 0; repetition < kRepetitions; ++repetition) {
            best_ns = std::min(best_ns, threads_wall_ns(thread_count, pairs));
        }
        return best_ns / static_cast<double>(pairs);
    }

    bool has_failed() const { return thread_failed_.load(); }

private:
    double threads_wall_ns(int thread_count, std::uint64_t pairs) {
        std::atomic<int> ready{0};
        std::atomic<bool> started{false};
        std::vector<std::thread> threads;
        for (int i = 0; i < thread_count; ++i) {
            threads.emplace_back([&] {
                pairs_of_thread(1);
                ready.fetch_add(1);
                while (!started.load(std::memory_order_acquire)) { std::this_thread::yield(); }
                pairs_of_thread(pairs);
            });
        }
        while (ready.load() < thread_count) { std::this_thread::yield(); }
        const double start = now_ns();
        started.store(true, std::memory_order_release);
        for (std::thread& thread : threads) { thread.join(); }
        return now_ns() - start;
    }

    void pairs_of_thread(std::uint64_t count) {
        try {
            for (std::uint64_t done = 0; done < count; ++done) { pair(kUnitBytes); }
        } catch (const std::exception&) {  // leaving a thread, it would end the process
            thread_failed_.store(true);
        }
    }

    std::vector<void*> live_;
    std::atomic<bool> thread_failed_{false};
};

Microbench measure(Bench& bench, double seconds) {
    Microbench result;
    for (const Bytes bytes : kSizes) {
        result.malloc_pair_ns.emplace_back(bytes, best_pair_ns(seconds, [bytes] {
                                               void* memory = std::malloc(bytes);
                                               escape(memory);
                                               std::free(memory);
                                           }));
        result.pair_ns.emplace_back(bytes, best_pair_ns(seconds, [bytes] { pair(bytes); }));
    }
    for (const int count : kThreadCounts) {
        result.thread_pair_ns.emplace_back(count, bench.threads_pair_ns(count, seconds));
    }
    for (const std::size_t count : kLiveCounts) {
        bench.add_live(count);
        result.live_pair_ns.emplace_back(count, best_pair_ns(seconds, [] { pair(kUnitBytes); }));
    }
    return result;
}

}  // namespace

Result<Microbench> microbench(const Options& options, double seconds) {
    Status status =
        use_driver_for_measurement(std::make_unique<HostDriver>(free_of_charge()), options);
    if (!status.ok()) { return status; }
    std::string why = "an allocation or a free failed while its time was taken";
    try {
        Bench bench;
        Microbench result = measure(bench, seconds);
        if (!bench.has_failed() && take_door_errors().total_count == 0) { return result; }
    } catch (const std::exception& error) { why += std::string(": ") + error.what(); }
    return Status(Code::DriverFailed, why);
}

}  // namespace gma
