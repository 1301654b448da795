// Loops over whatever allocator PyTorch uses at the moment, through the interface that its kernels
// use: what a tensor's memory costs on the host. Times are wall nanoseconds. A loop ends with its
// time, whatever it has done by then.

#include <atomic>
#include <exception>
#include <thread>

#include "latency.h"
#include "loops.h"

namespace {

using namespace loops;

constexpr int kDepth = 16;                            // live blocks
constexpr int kMixedDepth = 256;                      // and with sizes of all kinds
constexpr std::size_t kLeast = 512, kMost = 8 << 20;  // of the mixed sizes

// The oldest of the live blocks replaced each time, as a loop over layers does. Returns how many
// pairs of a free and an allocation were done.
int replace(std::size_t bytes, int pairs, double seconds, std::vector<c10::DataPtr>& ring) {
    caching::CUDAAllocator* allocator = caching::get();
    const Deadline end(seconds);
    int done = 0;
    while (done < pairs && !end.is_over()) {
        for (c10::DataPtr& slot : ring) {
            slot = c10::DataPtr();
            slot = allocator->allocate(bytes);
        }
        done += static_cast<int>(ring.size());
    }
    return done;
}

// One free and one allocation; the first pairs warm up.
double cost_of_pair(std::size_t bytes, int pairs, double seconds, std::vector<c10::DataPtr>& ring) {
    replace(bytes, pairs, seconds / 4, ring);
    const Clock::time_point begin = Clock::now();
    const int done = replace(bytes, pairs, seconds, ring);
    return ns_since(begin) / std::max(done, 1);
}

struct Latencies {
    Histogram allocate, free;

    void time(c10::DataPtr& slot, std::size_t bytes, caching::CUDAAllocator* allocator) {
        const std::uint64_t begin = ticks();
        slot = c10::DataPtr();
        const std::uint64_t between = ticks();
        slot = allocator->allocate(bytes);
        const std::uint64_t end = ticks();
        free.add(between - begin);
        allocate.add(end - between);
    }
};

// Zero bytes stand for sizes of all kinds, in no order.
void time_calls(std::size_t bytes, int pairs, double seconds, Latencies& found) {
    caching::CUDAAllocator* allocator = caching::get();
    Random random(5);
    std::vector<std::size_t> sizes(4096, bytes);
    for (std::size_t& size : sizes) { size = bytes == 0 ? random.size(kLeast, kMost) : bytes; }
    std::vector<c10::DataPtr> ring = make_blocks(sizes[0], bytes == 0 ? kMixedDepth : kDepth);
    std::size_t at = 0;
    const auto next = [&] { return bytes == 0 ? random.below(ring.size()) : at % ring.size(); };
    Latencies warm_up;
    for (const Deadline end(seconds / 4); at < sizes.size() && !end.is_over(); ++at) {
        warm_up.time(ring[next()], sizes[at], allocator);
    }
    const Deadline end(seconds);
    for (int pair = 0; pair < pairs && (pair % kDepth != 0 || !end.is_over()); ++pair, ++at) {
        found.time(ring[next()], sizes[at % sizes.size()], allocator);
    }
}

}  // namespace

extern "C" double pair_ns(std::size_t bytes, int pairs, double seconds) {
    try {
        std::vector<c10::DataPtr> ring = make_blocks(bytes, kDepth);
        return cost_of_pair(bytes, pairs, seconds, ring);
    } catch (const std::exception&) { return kRefused; }
}

// Calls timed one by one, what the clock takes taken off: p50, p99 and p99.99 of allocations, the
// same of frees, what the clock takes, and the number of pairs. Returns 0 if a call is refused.
extern "C" int latencies_ns(std::size_t bytes, int pairs, double seconds, double* found) {
    try {
        Latencies latencies;
        const Clock::time_point begin = Clock::now();
        const std::uint64_t first = ticks();
        const double apart = clock_ticks();
        time_calls(bytes, pairs, seconds, latencies);
        const double ns_of_tick = ns_since(begin) / static_cast<double>(ticks() - first);
        for (const Histogram* each : {&latencies.allocate, &latencies.free}) {
            for (const double part : {0.5, 0.99, 0.9999}) {
                *found++ = std::max(each->quantile(part) - apart, 0.0) * ns_of_tick;
            }
        }
        *found++ = apart * ns_of_tick;
        *found = static_cast<double>(latencies.free.total());
        return 1;
    } catch (const std::exception&) { return 0; }
}

// The pairs in several threads at once, each with one block: how long the slowest thread takes for
// a pair. All start together, and making the threads is not measured.
extern "C" double threads_ns(std::size_t bytes, int pairs, int count, double seconds) {
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<double> took(static_cast<std::size_t>(count), kRefused);
    std::vector<std::thread> threads;
    for (double& mine : took) {
        threads.emplace_back([&ready, &go, &mine, bytes, pairs, seconds] {
            try {
                std::vector<c10::DataPtr> ring = make_blocks(bytes, 1);
                replace(bytes, std::min(pairs, 1000), seconds / 4, ring);
                ready.fetch_add(1);
                while (!go.load()) { std::this_thread::yield(); }
                const Clock::time_point begin = Clock::now();
                int done = 0;  // asking for the time after each pair would be a part of it
                for (const Deadline end(seconds); done < pairs && !end.is_over(); done += kDepth) {
                    for (int pair = 0; pair < kDepth; ++pair) {
                        ring[0] = c10::DataPtr();
                        ring[0] = caching::get()->allocate(bytes);
                    }
                }
                mine = ns_since(begin) / std::max(done, 1);
            } catch (const std::exception&) { ready.fetch_add(1); }
        });
    }
    while (ready.load() < count) { std::this_thread::yield(); }
    go.store(true);
    for (std::thread& thread : threads) { thread.join(); }
    const auto [least, most] = std::minmax_element(took.begin(), took.end());
    return *least < 0 ? kRefused : *most;
}

extern "C" double device_stats_ns(int calls, double seconds) {
    try {
        long long seen = 0;
        int done = 0;
        const Deadline end(seconds);
        const Clock::time_point begin = Clock::now();
        for (; done < calls && (done % kDepth != 0 || !end.is_over()); ++done) {
            seen += caching::get()->getDeviceStats(0).num_ooms;
        }
        const double took = ns_since(begin) / std::max(done, 1);
        return seen < 0 ? kRefused : took;
    } catch (const std::exception&) { return kRefused; }
}
