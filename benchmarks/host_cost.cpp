// Loops over whatever allocator PyTorch uses at the moment, through the interface that its kernels
// use: what a tensor's memory costs on the host. Times are wall nanoseconds. A call that the
// allocator does not answer gives -1.

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
namespace caching = c10::cuda::CUDACachingAllocator;

double ns_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

// A ring of live blocks, the oldest replaced each time, as a loop over layers does.
void replace(std::size_t bytes, int pairs, std::vector<c10::DataPtr>& ring) {
    caching::CUDAAllocator* allocator = caching::get();
    std::size_t at = 0;
    for (int pair = 0; pair < pairs; ++pair) {
        c10::DataPtr& slot = ring[at];
        slot = c10::DataPtr();
        slot = allocator->allocate(bytes);
        at = at + 1 == ring.size() ? 0 : at + 1;
    }
}

std::vector<c10::DataPtr> make_ring(std::size_t bytes, int depth) {
    std::vector<c10::DataPtr> ring(static_cast<std::size_t>(depth));
    for (c10::DataPtr& slot : ring) {
        slot = caching::get()->allocate(bytes);
    }
    return ring;
}

}  // namespace

// One free and one allocation, `depth` blocks being live.
extern "C" double pair_ns(std::size_t bytes, int pairs, int depth) {
    try {
        std::vector<c10::DataPtr> ring = make_ring(bytes, depth);
        replace(bytes, pairs, ring);  // warm
        const Clock::time_point begin = Clock::now();
        replace(bytes, pairs, ring);
        return ns_since(begin) / pairs;
    } catch (const std::exception&) {
        return -1;
    }
}

// The same in several threads at once: how long a thread takes for one pair. All start together,
// and making the threads is not measured.
extern "C" double threads_ns(std::size_t bytes, int pairs, int count) {
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<double> took(static_cast<std::size_t>(count), -1);
    std::vector<std::thread> threads;
    for (double& mine : took) {
        threads.emplace_back([&ready, &go, &mine, bytes, pairs] {
            try {
                std::vector<c10::DataPtr> ring = make_ring(bytes, 1);
                replace(bytes, std::min(pairs, 1000), ring);
                ready.fetch_add(1);
                while (!go.load()) {
                    std::this_thread::yield();
                }
                const Clock::time_point begin = Clock::now();
                replace(bytes, pairs, ring);
                mine = ns_since(begin) / pairs;
            } catch (const std::exception&) {
                ready.fetch_add(1);
            }
        });
    }
    while (ready.load() < count) {
        std::this_thread::yield();
    }
    go.store(true);
    for (std::thread& thread : threads) {
        thread.join();
    }
    const auto [least, most] = std::minmax_element(took.begin(), took.end());
    return *least < 0 ? -1 : *most;
}

extern "C" double device_stats_ns(int calls) {
    try {
        long long seen = 0;
        const Clock::time_point begin = Clock::now();
        for (int call = 0; call < calls; ++call) {
            seen += caching::get()->getDeviceStats(0).num_ooms;
        }
        const double took = ns_since(begin) / calls;
        return seen < 0 ? -1 : took;
    } catch (const std::exception&) {
        return -1;
    }
}
