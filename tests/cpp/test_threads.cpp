// Threads allocate, free, hand blocks to each other and exit, while others read the statistics, the
// audit and snapshots, and trim. Made for the thread sanitizer; contents are checked as well.
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "pattern_world.h"

namespace gma {
namespace {

constexpr unsigned kWorkerCount = 4;
constexpr int kRoundCount = 4;
constexpr int kOperationCount = GMA_SANITIZED ? 300 : 1500;

struct Piece {
    Address address = 0;
    Bytes bytes = 0;
    unsigned char value = 0;
};

// Blocks that any thread may free.
class Exchange {
public:
    void put(Piece piece) {
        const std::lock_guard guard(lock_);
        pieces_.push_back(piece);
    }
    Piece take(std::size_t number) {
        const std::lock_guard guard(lock_);
        if (pieces_.empty()) { return {}; }
        std::swap(pieces_[number % pieces_.size()], pieces_.back());
        const Piece piece = pieces_.back();
        pieces_.pop_back();
        return piece;
    }

private:
    std::mutex lock_;
    std::vector<Piece> pieces_;
};

class Crowd {
public:
    explicit Crowd(const char* options)
        : world(options, PatternWorld::small_card(96_MiB)), allocator(*world.allocator) {}

    // A generation of threads is born, works and exits; what it leaves the next one frees.
    void live() {
        std::vector<std::thread> workers;
        for (unsigned number = 0; number < kWorkerCount; ++number) {
            workers.emplace_back([this, number] { work(number); });
        }
        std::thread watcher([this] { watch(); });
        for (std::thread& worker : workers) { worker.join(); }
        done_ = true;
        watcher.join();
        done_ = false;
    }
    void finish() {
        CHECK(allocator.isolation_report(0).violation_count == 0);
        for (Piece piece = exchange_.take(0); piece.address != 0; piece = exchange_.take(0)) {
            give(piece);
        }
        CHECK(problem_count == 0);
        world.check_audit();
        world.check_nothing_left();
    }

    PatternWorld world;
    Allocator& allocator;
    std::atomic<int> problem_count{0};

private:
    void work(unsigned number) {
        std::mt19937 random(number + 17);
        for (int i = 0; i < kOperationCount; ++i) {
            if (random() % 5 < 3) {
                const Stream stream = stream_at(random() % 2);
                const Bytes bytes = random() % 5 == 0 ? 1 + random() % 3_MiB : 1 + random() % 6000;
                const Result<Address> address = allocator.allocate(0, bytes, stream);
                if (!address || *address == 0) {
                    problem_count += address.status().code() != Code::OutOfMemory;
                    give(exchange_.take(random()));
                    continue;
                }
                const Piece piece{*address, bytes, static_cast<unsigned char>(random())};
                // With isolation, fresh memory is filled in stream order.
                if (fills_) { world.driver.drain(stream); }
                std::memset(memory(piece), piece.value, 1);
                memory(piece)[bytes - 1] = piece.value;
                if (random() % 16 == 0) {
                    problem_count += !allocator.record_stream(*address, stream_at(2)).ok();
                }
                exchange_.put(piece);
            } else {
                give(exchange_.take(random()));
            }
        }
    }
    void give(const Piece& piece) {
        if (piece.address == 0) { return; }
        problem_count += memory(piece)[0] != piece.value;
        problem_count += memory(piece)[piece.bytes - 1] != piece.value;
        problem_count += !allocator.free(piece.address).ok();
    }
    void watch() {
        while (!done_) {
            problem_count += !allocator.audit().ok();
            problem_count += allocator.statistics(0).reserved_bytes[0].current < 0;
            problem_count += allocator.snapshot(0).size() > 100'000;
            problem_count += allocator.ledger(0).size() > 1'000'000;
            problem_count += allocator.isolation_report(0).violation_count > 0;
            problem_count += !allocator.trim(0, 1_MiB);
            world.driver.drain(stream_at(2));
            std::this_thread::yield();
        }
    }
    static unsigned char* memory(const Piece& piece) {
        return reinterpret_cast<unsigned char*>(piece.address);
    }

    Exchange exchange_;
    const bool fills_ = allocator.options().isolation != "off";
    std::atomic<bool> done_{false};
};

void crowd(const char* options) {
    CAPTURE(options);
    Crowd crowd(options);
    for (int round = 0; round < kRoundCount; ++round) { crowd.live(); }
    crowd.finish();
}

}  // namespace

TEST_CASE("threads share a paged allocator") { crowd("strategy:paged"); }
TEST_CASE("threads share a split allocator") { crowd("strategy:split"); }
TEST_CASE("threads share a direct allocator") { crowd("strategy:direct"); }
TEST_CASE("threads share an isolated allocator") {
    SUBCASE("stream") { crowd("isolation:stream"); }
    SUBCASE("packed") { crowd("isolation:packed"); }
    SUBCASE("tensor") { crowd("isolation:tensor"); }
    SUBCASE("strict") { crowd("isolation:strict"); }
}

// An empty slab that was just made must not be drained before its first object is taken.
TEST_CASE("trimming does not take a slab from under its maker") {
    PatternWorld world("strategy:paged", PatternWorld::small_card(96_MiB));
    std::atomic<bool> done{false};
    std::atomic<int> zero_count{0};
    std::thread trimmer([&] {
        while (!done) { static_cast<void>(world.allocator->trim(0)); }
    });
    for (int i = 0; i < kOperationCount; ++i) {
        const Result<Address> address = world.allocator->allocate(0, 512, stream_at(1));
        REQUIRE(static_cast<bool>(address));
        zero_count += *address == 0;
        REQUIRE(world.allocator->free(*address).ok());
    }
    done = true;
    trimmer.join();
    CHECK(zero_count == 0);
    world.check_nothing_left();
}

// A heap may end before the threads that borrowed its caches.
TEST_CASE("threads outlive an allocator") {
    auto world = std::make_unique<PatternWorld>("strategy:paged", PatternWorld::small_card(96_MiB));
    std::atomic<int> phase{0};
    std::thread thread([&] {
        const Result<Address> address = world->allocator->allocate(0, 600, nullptr);
        REQUIRE(static_cast<bool>(address));
        REQUIRE(world->allocator->free(*address).ok());
        phase = 1;
        while (phase != 2) { std::this_thread::yield(); }
    });
    while (phase != 1) { std::this_thread::yield(); }
    world->check_nothing_left();
    world.reset();
    phase = 2;
    thread.join();
}

}  // namespace gma
