// Loops for what memory costs when there is more of everything: live blocks, streams, threads,
// memory held. All through the allocator that PyTorch uses at the moment, in wall nanoseconds.
// Every loop ends with its time.

#include <c10/cuda/CUDAStream.h>

#include <array>
#include <atomic>
#include <exception>
#include <map>
#include <optional>
#include <thread>

#include "loops.h"

namespace {

using namespace loops;

constexpr int kBatch = 32;        // pairs between two readings of the clock
constexpr std::size_t kRing = 4;  // blocks of a stream or thread

// Times batches of pairs until the time is over; a quarter of it warms up. The middle batch tells
// what a pair costs, the mean also what is rare and slow: calls of the driver.
class Batches {
public:
    template <class Pair>
    void run(double seconds, Pair pair) {
        const auto go = [&pair] {
            for (int done = 0; done < kBatch; ++done) { pair(); }
        };
        for (const Deadline end(seconds / 4); !end.is_over();) { go(); }
        took_ns_.reserve(1 << 16);
        const Clock::time_point begin = Clock::now();
        Clock::time_point last = begin;
        for (const Deadline end(seconds); !end.is_over() || took_ns_.empty();) {
            go();
            const Clock::time_point now = Clock::now();
            took_ns_.push_back(std::chrono::duration<double, std::nano>(now - last).count());
            last = now;
        }
        all_ns_ = std::chrono::duration<double, std::nano>(last - begin).count();
    }

    void tell(double* found) {
        const auto middle = took_ns_.begin() + static_cast<std::ptrdiff_t>(took_ns_.size() / 2);
        std::nth_element(took_ns_.begin(), middle, took_ns_.end());
        found[0] = *middle / kBatch;
        found[1] = all_ns_ / (kBatch * static_cast<double>(took_ns_.size()));
    }

private:
    std::vector<double> took_ns_;
    double all_ns_ = 0;
};

// Live blocks of sizes between two bounds, and pairs that replace one of them, anywhere.
class LiveBlocks {
public:
    LiveBlocks(std::size_t least, std::size_t most) {
        for (std::size_t& size : sizes_) { size = random_.size(least, most); }
    }

    bool grow(std::size_t count, double seconds) {
        const Deadline end(seconds);
        blocks_.reserve(count);
        while (blocks_.size() < count) {
            if (blocks_.size() % kBatch == 0 && end.is_over()) { return false; }
            blocks_.push_back(caching::get()->allocate(next_size()));
        }
        return true;
    }

    void shrink(std::size_t count) { blocks_.resize(std::min(count, blocks_.size())); }

    void pairs(double seconds, double* found) {
        caching::CUDAAllocator* allocator = caching::get();
        // The loop's own memory is fetched ahead, so that only the allocator's counts.
        std::array<std::size_t, 16> ahead;
        for (std::size_t& each : ahead) { each = random_.below(blocks_.size()); }
        std::size_t at = 0;
        Batches batches;
        batches.run(seconds, [&] {
            std::size_t& next = ahead[at++ % ahead.size()];
            c10::DataPtr& block = blocks_[next];
            next = random_.below(blocks_.size());
            __builtin_prefetch(&blocks_[next], 1);
            block = c10::DataPtr();
            block = allocator->allocate(next_size());
        });
        batches.tell(found);
    }

private:
    std::size_t next_size() { return sizes_[size_at_++ % sizes_.size()]; }

    Random random_{7};
    std::array<std::size_t, 4096> sizes_;
    std::size_t size_at_ = 0;
    std::vector<c10::DataPtr> blocks_;
};

// Never destroyed: to free a million blocks at the end is in nobody's interest.
std::optional<LiveBlocks>& live = *new std::optional<LiveBlocks>;
std::vector<c10::cuda::CUDAStream> streams;
using Rings = std::vector<std::vector<c10::DataPtr>>;
std::map<std::size_t, Rings> rings_by_bytes;  // one for each stream

void make_streams(int count) {
    while (streams.size() < static_cast<std::size_t>(count)) {
        streams.push_back(c10::cuda::getStreamFromPool(false, 0));
    }
}

// One thread, the next stream for each pair, as an engine with a queue of streams does.
void stream_pairs_of(std::size_t bytes, int count, double seconds, double* found) {
    make_streams(count);
    caching::CUDAAllocator* allocator = caching::get();
    Rings& rings = rings_by_bytes[bytes];
    while (rings.size() < static_cast<std::size_t>(count)) {
        c10::cuda::setCurrentCUDAStream(streams[rings.size()]);
        rings.push_back(make_blocks(bytes, kRing));
    }
    std::size_t at = 0, turn = 0;
    Batches batches;
    batches.run(seconds, [&] {
        c10::cuda::setCurrentCUDAStream(streams[at]);
        c10::DataPtr& block = rings[at][turn % kRing];
        block = c10::DataPtr();
        block = allocator->allocate(bytes);
        if (++at == static_cast<std::size_t>(count)) {
            at = 0;
            ++turn;
        }
    });
    batches.tell(found);
}

// Pairs of one thread until all are told to stop.
long pairs_until(const std::atomic<bool>& stop, std::size_t bytes) {
    caching::CUDAAllocator* allocator = caching::get();
    std::vector<c10::DataPtr> ring = make_blocks(bytes, kRing);
    long done = 0;
    for (; !stop.load(std::memory_order_relaxed); ++done) {
        c10::DataPtr& block = ring[static_cast<std::size_t>(done) % kRing];
        block = c10::DataPtr();
        block = allocator->allocate(bytes);
    }
    return done;
}

// How long a thread takes for a pair while all run. The count begins when all have warmed up.
double thread_wall_ns(std::size_t bytes, int count, bool own_streams, double seconds) {
    make_streams(own_streams ? count : 0);
    std::atomic<bool> warm{false}, stop{false};
    std::atomic<int> ready{0};
    std::atomic<long> pairs{0};
    std::atomic<bool> failed{false};
    std::vector<std::thread> threads;
    for (int number = 0; number < count; ++number) {
        threads.emplace_back([&, number] {
            try {
                if (own_streams) {
                    c10::cuda::setCurrentCUDAStream(streams[static_cast<std::size_t>(number)]);
                }
                ready.fetch_add(1);
                pairs_until(warm, bytes);
                pairs.fetch_add(pairs_until(stop, bytes));
            } catch (const std::exception&) { failed.store(true); }
        });
    }
    const auto wait = [](double for_s) {
        std::this_thread::sleep_for(std::chrono::duration<double>(for_s));
    };
    while (ready.load() < count && !failed.load()) { wait(1e-4); }
    wait(seconds / 4);
    const Clock::time_point begin = Clock::now();
    warm.store(true);
    wait(seconds);
    stop.store(true);
    const double took_ns = ns_since(begin);
    for (std::thread& thread : threads) { thread.join(); }
    return failed.load() ? kRefused
                         : took_ns * count / static_cast<double>(std::max(pairs.load(), 1L));
}

// What failed, as text that stays until the next failure.
std::string last_error;

template <class Work>
int answer(Work work) {
    try {
        return work() ? 1 : 0;
    } catch (const std::exception& error) {
        last_error = error.what();
        return -1;
    }
}

}  // namespace

extern "C" const char* error_text() { return last_error.c_str(); }

extern "C" void live_begin(std::size_t least, std::size_t most) { live.emplace(least, most); }

// 1: so many blocks are live; 0: the time was over before; -1: error_text() says why not.
extern "C" int live_grow(std::size_t count, double seconds) {
    return answer([&] { return live->grow(count, seconds); });
}

extern "C" void live_shrink(std::size_t count) { live->shrink(count); }

// found: the middle and the mean of ns for a pair.
extern "C" int live_pairs(double seconds, double* found) {
    return answer([&] { return live->pairs(seconds, found), true; });
}

extern "C" int stream_pairs(std::size_t bytes, int count, double seconds, double* found) {
    const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
    const int done = answer([&] { return stream_pairs_of(bytes, count, seconds, found), true; });
    c10::cuda::setCurrentCUDAStream(before);
    return done;
}

extern "C" void streams_end() { rings_by_bytes.clear(); }

extern "C" int thread_pairs(std::size_t bytes, int count, int own_streams, double seconds,
                            double* found) {
    return answer([&] {
        found[0] = found[1] = thread_wall_ns(bytes, count, own_streams != 0, seconds);
        return found[0] >= 0;
    });
}

extern "C" int empty_cache() {
    return answer([] { return caching::emptyCache(), true; });
}
