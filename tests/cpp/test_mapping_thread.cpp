// The thread that maps freed memory for the next tensor (option mapping_thread).
#include "core/mapping_thread.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "child_process.h"
#include "isolated_world.h"

namespace gma {
namespace {

constexpr Bytes kPage = PatternWorld::kPage;

struct Moving : PatternWorld {
    explicit Moving(const std::string& options = "isolation:tensor", Bytes capacity_bytes = 16_MiB)
        : PatternWorld(options + ",mapping_thread:on", small_card(capacity_bytes)) {}

    std::uint64_t count(Call call) { return driver.totals().count(call); }
    std::uint64_t mappings() {
        return count(Call::Map) + count(Call::SetAccess) + count(Call::Unmap);
    }
    bool is_mapped(Address address) { return driver.mapping_at(address).has_value(); }
    // Frees it, lets its stream and then the thread finish.
    void free_settled(Address address) {
        REQUIRE(free(address).ok());
        driver.drain_all();
        static_cast<void>(allocator->check_isolation(0));  // sees that the fence has passed
        settle_thread();
    }
    void settle_thread() { REQUIRE(allocator->trim(0, Bytes{0})); }
};

// Holds the driver's lock: nobody's call returns until it is let go.
class Held {
public:
    explicit Held(HostDriver& driver) {
        driver.launch(stream_at(9), [this] {
            is_held_ = true;
            while (!let_go_) { std::this_thread::yield(); }
        });
        thread_ = std::thread([&driver] { driver.drain(stream_at(9)); });
        while (!is_held_) { std::this_thread::yield(); }
    }
    void let_go() {
        let_go_ = true;
        thread_.join();
    }

private:
    std::atomic<bool> is_held_{false};
    std::atomic<bool> let_go_{false};
    std::thread thread_;
};

}  // namespace

TEST_CASE("the next tensor of as many pages finds a window that is mapped") {
    for (const char* level :
         {"isolation:tensor", "isolation:strict", "isolation:tensor,guard:lower"}) {
        CAPTURE(level);
        Moving world(level);
        const Stream stream = stream_at(1);
        const Address first = world.allocate(5 * kPage, stream);
        world.free_settled(first);
        CHECK(!world.is_mapped(first));
        CHECK(world.driver.mapped_bytes() == 5 * kPage);
        CHECK(world.reserved_bytes() == 5 * kPage);
        const std::uint64_t before = world.mappings() + world.count(Call::Create);
        const Address next = world.allocate(4 * kPage + 100, stream);
        CHECK(world.mappings() + world.count(Call::Create) == before);
        CHECK(next != first);
        CHECK(world.is_mapped(next));
        CHECK(world.driver.mapped_ranges().size() == 1);
        CHECK(!world.is_mapped(world.driver.mapped_ranges()[0].start - 1));
        CHECK(!world.is_mapped(world.driver.mapped_ranges()[0].start + 5 * kPage));
        world.free_settled(next);
        check_no_alarm(world);
        world.check_nothing_left();
    }
}

TEST_CASE("strict: it is unmapped before the free returns, thread or not") {
    Moving world("isolation:strict");
    const Address address = world.allocate(1000, stream_at(1));
    REQUIRE(world.free(address).ok());
    CHECK(!world.is_mapped(address));
    CHECK(world.allocator->isolation_report(0).quarantined_address_bytes == 3 * kPage);
    world.check_audit();
    world.settle_thread();
    CHECK(world.allocator->isolation_report(0).quarantined_address_bytes == 3 * kPage);
    world.check_nothing_left();
}

TEST_CASE("memory of another size, stream or a full card is taken out of its window again") {
    Moving world("isolation:tensor");
    const Address first = world.allocate(10_MiB, stream_at(1));
    world.free_settled(first);
    REQUIRE(world.driver.mapped_bytes() == 10_MiB);
    SUBCASE("another size") { CHECK(world.allocate(9_MiB, stream_at(1)) != 0); }
    SUBCASE("another stream") { CHECK(world.allocate(10_MiB, stream_at(2)) != 0); }
    SUBCASE("a limit") {
        REQUIRE(world.allocator->set_limit(0, 11_MiB).ok());
        CHECK(world.allocate(2_MiB, stream_at(1)) != 0);
        CHECK(world.reserved_bytes() <= 11_MiB);
    }
    SUBCASE("a trim") {
        REQUIRE(world.allocator->trim(0));
        CHECK(world.reserved_bytes() == 0);
        CHECK(world.driver.held_bytes(0) == 0);
    }
    world.check_audit();
    CHECK(world.reserved_bytes() == world.driver.held_bytes(0));
    world.check_nothing_left();
}

TEST_CASE("a window that cannot be taken apart counts against the limit") {
    Moving world("isolation:tensor,limit_mb:2");
    const Address first = world.allocate(1_MiB, stream_at(1));
    world.free_settled(first);
    REQUIRE(world.driver.mapped_bytes() == 1_MiB);
    world.driver.fail_kind(Call::Unmap, 1, {}, 100);
    CHECK(world.allocate(2_MiB, stream_at(1)) == 0);
    CHECK(world.last.code() == Code::OutOfMemory);
    CHECK(world.reserved_bytes() <= 2_MiB);
    CHECK(world.driver.held_bytes(0) <= 2_MiB);
    world.check_audit();
    world.driver.clear_faults();
    CHECK(world.allocate(2_MiB - kPage, stream_at(1)) == 0);  // stuck until the next trim
    REQUIRE(world.allocator->trim(0));
    CHECK(world.allocate(2_MiB - kPage, stream_at(1)) != 0);
    check_no_alarm(world);
    world.check_nothing_left();
}

TEST_CASE("what is on its way counts as quarantined") {
    Moving world;
    const Address address = world.allocate(1000, stream_at(1));
    REQUIRE(world.free(address).ok());
    world.driver.drain_all();
    static_cast<void>(world.allocate(2 * kPage, stream_at(1)));  // sees that the fence has passed
    CHECK(world.allocator->isolation_report(0).quarantined_address_bytes == 3 * kPage);
    world.settle_thread();
    CHECK(world.allocator->isolation_report(0).quarantined_address_bytes == 3 * kPage);
    world.check_nothing_left();
}

TEST_CASE("what was freed is unmapped when a check returns") {
    Moving world;
    for (int round = 0; round < 20; ++round) {
        const Address address = world.allocate(kPage, stream_at(1));
        REQUIRE(world.free(address).ok());
        world.driver.drain_all();
        REQUIRE(world.allocator->check_isolation(0));
        CHECK(!world.is_mapped(address));
    }
    world.check_nothing_left();
}

TEST_CASE("what is on its way is waited for where there is room for nothing else") {
    Moving world("isolation:tensor,limit_mb:1");
    const Stream stream = stream_at(1);
    for (int round = 0; round < 8; ++round) {
        const Address address = world.allocate(1_MiB, stream);
        REQUIRE(address != 0);
        REQUIRE(world.free(address).ok());
        world.driver.drain_all();
    }
    CHECK(world.count(Call::Create) == 1);
    world.check_nothing_left();
}

TEST_CASE("a write into freed memory is found, also where it is mapped anew") {
    Moving world;
    const Stream stream = stream_at(1);
    const Address first = world.allocate(3 * kPage, stream);
    REQUIRE(world.free(first).ok());
    world.driver.launch(stream, [first] { *reinterpret_cast<unsigned char*>(first + 77) = 0x5A; });
    world.driver.drain_all();
    static_cast<void>(world.allocate(16, stream));  // sees that the fence has passed
    world.settle_thread();
    REQUIRE(!world.is_mapped(first));
    const std::uint64_t before = world.mappings();
    static_cast<void>(world.allocate(3 * kPage, stream));
    CHECK(world.mappings() == before);
    REQUIRE(world.allocator->check_isolation(0));
    const auto found = world.allocator->isolation_report(0).violations;
    REQUIRE(found.size() == 1);
    CHECK(found[0].kind == Violation::Kind::WriteAfterFree);
    CHECK(found[0].tensor.address == first);
    CHECK(found[0].first_bad == first + 77);
    world.check_nothing_left();
}

// As many as may wait, each of a page.
struct FullQueue {
    HostDriver driver{PatternWorld::small_card(MappingThread::kMaxWaiting * kPage)};
    std::vector<MappingJob> jobs;
    Address pages = 0;
    MappingThread thread{driver, 0};

    explicit FullQueue(std::uint64_t count = MappingThread::kMaxWaiting)
        : jobs(count), pages(*driver.reserve(0, 2 * count * kPage, kPage)) {
        for (std::size_t i = 0; i < jobs.size(); ++i) {
            GuardedChunk chunk;
            chunk.bytes = kPage;
            chunk.handle = *driver.create(0, kPage, Reach::Private);
            jobs[i].pages = pages + i * kPage;
            jobs[i].chunks.push_back(chunk);
            REQUIRE(map_chunks(driver, 0, jobs[i].pages, jobs[i].chunks).ok());
        }
    }
    void start() {
        for (MappingJob& job : jobs) {
            REQUIRE(thread.has_room());
            thread.start(&job);
        }
    }
    // Of the jobs that end, as many as are waited for, in their order.
    std::vector<MappingJob*> take(std::size_t count) {
        std::vector<MappingJob*> taken;
        while (taken.size() < count && thread.wait_finished()) {
            MappingQueue finished = thread.take_finished();
            while (MappingJob* job = finished.pop()) { taken.push_back(job); }
        }
        return taken;
    }
};

// Two windows of a size that are ready, of tensors that were freed in this order.
struct TwoReady : Moving {
    Stream stream = stream_at(1);
    Address first = allocate(3 * kPage, stream);
    Address second = allocate(3 * kPage, stream);

    // The program writes there once more after the free.
    void free_both(Address written) {
        REQUIRE(free(first).ok());
        REQUIRE(free(second).ok());
        if (written != 0) {
            driver.launch(stream, [written] { *reinterpret_cast<unsigned char*>(written) = 1; });
        }
        driver.drain_all();
        static_cast<void>(allocate(16, stream));  // sees that the fences have passed
        settle_thread();
        REQUIRE(!is_mapped(first));
        REQUIRE(!is_mapped(second));
    }
};

TEST_CASE("windows of a size that are ready are looked at together") {
    TwoReady world;
    world.free_both(0);
    const std::uint64_t checks = world.count(Call::Check);
    const Address one = world.allocate(3 * kPage, world.stream);
    CHECK(world.count(Call::Check) == checks + 1);
    const Address other = world.allocate(3 * kPage, world.stream);
    CHECK(world.count(Call::Check) == checks + 1);
    world.free_settled(one);
    world.free_settled(other);
    const std::uint64_t later_checks = world.count(Call::Check);
    const Address again = world.allocate(3 * kPage, world.stream);
    CHECK(world.count(Call::Check) == later_checks + 1);  // what they held is looked at again
    world.free_settled(again);
    check_no_alarm(world);
    CHECK(world.allocator->isolation_report(0).unchecked_count == 0);
    world.check_nothing_left();
}

TEST_CASE("a window that was looked at goes before one that came later") {
    TwoReady world;
    world.free_both(0);
    const Address one = world.allocate(3 * kPage, world.stream);  // looks at both
    world.free_settled(one);
    const std::uint64_t checks = world.count(Call::Check);
    const Address other = world.allocate(3 * kPage, world.stream);
    CHECK(world.count(Call::Check) == checks);
    const Address late = world.allocate(3 * kPage, world.stream);
    CHECK(world.count(Call::Check) == checks + 1);
    world.free_settled(other);
    world.free_settled(late);
    check_no_alarm(world);
    world.check_nothing_left();
}

TEST_CASE("a look finds writes into either, and tells each once, whoever comes next") {
    for (const bool into_second : {false, true}) {
        CAPTURE(into_second);
        TwoReady world;
        const Address written = (into_second ? world.second : world.first) + 5;
        world.free_both(written);
        const Address one = world.allocate(2 * kPage + 16, world.stream);
        const Address other = world.allocate(2 * kPage + 16, world.stream);
        REQUIRE(world.allocator->check_isolation(0));
        world.free_settled(other);
        world.free_settled(one);
        const auto found = world.allocator->isolation_report(0).violations;
        REQUIRE(found.size() == 1);
        CHECK(found[0].kind == Violation::Kind::WriteAfterFree);
        CHECK(found[0].first_bad == written);
        CHECK(found[0].tensor.address == written - 5);
        world.check_nothing_left();
    }
}

TEST_CASE("a window that a look is queued for is not taken apart before") {
    TwoReady world;
    world.free_both(0);
    const Address one = world.allocate(3 * kPage, world.stream);
    SUBCASE("for memory") { REQUIRE(world.allocator->trim(0)); }
    SUBCASE("for another stream") { CHECK(world.allocate(3 * kPage, stream_at(2)) != 0); }
    SUBCASE("for another size") { CHECK(world.allocate(5 * kPage, world.stream) != 0); }
    world.free_settled(one);
    check_no_alarm(world);
    CHECK(world.allocator->isolation_report(0).unchecked_count == 0);
    world.check_nothing_left();
}

TEST_CASE("what is looked at is out of reach while a graph is captured") {
    TwoReady world;
    world.free_both(0);
    const Address one = world.allocate(3 * kPage, world.stream);  // queues a look at both
    const Stream graph = stream_at(5);
    world.driver.set_capturing(graph, true);
    world.allocator->begin_capture(0);
    const std::uint64_t created = world.count(Call::Create);
    SUBCASE("for its stream") { CHECK(world.allocate(3 * kPage, world.stream) != 0); }
    SUBCASE("for memory") {
        REQUIRE(world.allocator->set_limit(0, world.reserved_bytes()).ok());
        CHECK(world.allocate(kPage, graph) == 0);
        CHECK(world.last.code() == Code::OutOfMemory);
    }
    CHECK(world.count(Call::Create) == created + (world.last.ok() ? 1 : 0));
    world.check_audit();
    world.driver.set_capturing(graph, false);
    world.allocator->end_capture(0);
    CHECK(world.driver.capture_violations() == 0);
    CHECK(world.allocate(kPage, graph) != 0);
    world.free_settled(one);
    check_no_alarm(world);
    CHECK(world.allocator->isolation_report(0).unchecked_count == 0);
    world.check_nothing_left();
}

TEST_CASE("a look that fails may have been queued: it is waited for") {
    TwoReady world;
    world.free_both(0);
    world.driver.fail_kind(Call::Check, 1);
    const std::uint64_t waits = world.count(Call::Synchronize);
    CHECK(world.allocate(3 * kPage, world.stream) != 0);
    CHECK(world.count(Call::Synchronize) == waits + 1);
    CHECK(world.allocator->isolation_report(0).unchecked_count == 1);
    world.check_nothing_left();
}

TEST_CASE("a look that cannot be waited for is over before its windows go") {
    TwoReady world;
    world.free_both(0);
    const Address one = world.allocate(3 * kPage, world.stream);
    world.driver.fail_kind(Call::Synchronize, 1);
    REQUIRE(world.allocator->trim(0));
    CHECK(world.allocator->isolation_report(0).unchecked_count == 1);
    world.free_settled(one);
    check_no_alarm(world);
    world.check_nothing_left();
}

TEST_CASE("what an allocator queued is done before its memory goes") {
    TwoReady world;
    SUBCASE("a look") {
        world.free_both(0);
        world.driver.drain_all();
        REQUIRE(world.allocator->allocate(0, 3 * kPage, world.stream));
    }
    SUBCASE("the check and the fill of a free") {
        world.driver.drain_all();
        REQUIRE(world.allocator->free(world.first).ok());
    }
    world.blocks.clear();
    world.allocator.reset();
    world.driver.drain_all();
    CHECK(world.driver.illegal_accesses().empty());
}

TEST_CASE("what is needed now is taken back, unless it is done in a moment") {
    FullQueue queue(8);
    for (std::size_t i = 0; i < queue.jobs.size(); ++i) {
        queue.jobs[i].fresh_pages = queue.pages + (queue.jobs.size() + i) * kPage;
    }
    Held held(queue.driver);
    queue.start();
    CHECK(queue.thread.take_back(&queue.jobs[5]));
    CHECK(!queue.thread.take_back(&queue.jobs[5]));
    CHECK(queue.thread.take_back(&queue.jobs[7]));
    held.let_go();
    const std::vector<MappingJob*> ended = queue.take(6);
    REQUIRE(ended.size() == 6);
    CHECK(std::find(ended.begin(), ended.end(), &queue.jobs[5]) == ended.end());
    CHECK(!queue.thread.wait_finished());
    CHECK(!queue.thread.take_back(&queue.jobs[0]));
    CHECK(queue.driver.mapped_bytes() == 8 * kPage);  // the two where they were
    for (const std::size_t back : {5, 7}) { CHECK(queue.jobs[back].leave(queue.driver)); }
    for (MappingJob* job : ended) {
        REQUIRE(unmap_chunks(queue.driver, job->fresh_pages, LastPlace::Keep, job->chunks).ok());
    }
    CHECK(queue.driver.mapped_bytes() == 0);
    for (const MappingJob& job : queue.jobs) {
        REQUIRE(queue.driver.release(0, job.chunks[0].handle, kPage).ok());
    }
    REQUIRE(queue.driver.unreserve(queue.pages, 2 * queue.jobs.size() * kPage).ok());
}

// The memory of many small tensors is on its way when a large one comes back.
TEST_CASE("a handle on its way is found among many others") {
    constexpr Bytes kLarge = 64 * kPage;
    Moving world("isolation:tensor,limit_mb:" + std::to_string((kLarge + 40 * kPage) / 1_MiB));
    const Stream stream = stream_at(1);
    std::vector<Address> small;
    for (int i = 0; i < 30; ++i) { small.push_back(world.allocate(kPage, stream)); }
    const Address large = world.allocate(kLarge, stream);
    REQUIRE(large != 0);
    for (const Address address : small) { REQUIRE(world.free(address).ok()); }
    REQUIRE(world.free(large).ok());
    world.driver.drain_all();
    const std::uint64_t created = world.count(Call::Create);
    CHECK(world.allocate(kLarge, stream) != 0);
    CHECK(world.count(Call::Create) == created);
    world.check_audit();
    world.settle_thread();
    check_no_alarm(world);
    world.check_nothing_left();
}

TEST_CASE("the thread makes no call while another one has its turn") {
    FullQueue queue(2);
    {
        const MappingThread::Turn none(queue.thread);  // there is no thread yet
        queue.start();
    }
    REQUIRE(queue.take(2).size() == 2);
    const Address fresh = queue.pages + 2 * kPage;
    queue.jobs[0].pages = fresh;
    {
        const MappingThread::Turn turn(queue.thread);
        REQUIRE(map_chunks(queue.driver, 0, fresh, queue.jobs[0].chunks).ok());
        REQUIRE(queue.thread.has_room());
        queue.thread.start(&queue.jobs[0]);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        CHECK(queue.driver.mapped_bytes() == kPage);
    }
    REQUIRE(queue.take(1).size() == 1);
    CHECK(queue.driver.mapped_bytes() == 0);
    for (const MappingJob& job : queue.jobs) {
        REQUIRE(queue.driver.release(0, job.chunks[0].handle, kPage).ok());
    }
    REQUIRE(queue.driver.unreserve(queue.pages, 2 * queue.jobs.size() * kPage).ok());
}

TEST_CASE("what the thread's calls refuse goes where the caller's would") {
    Moving world;
    const Stream stream = stream_at(1);
    const Address address = world.allocate(5 * kPage, stream);
    REQUIRE(world.free(address).ok());
    world.driver.drain_all();
    bool is_stuck = true;
    SUBCASE("the old mapping stays") { world.driver.fail_kind(Call::Unmap, 1); }
    SUBCASE("it can be mapped nowhere new") {
        world.driver.fail_kind(Call::Map, 1);
        is_stuck = false;
    }
    SUBCASE("nor used there") {
        world.driver.fail_kind(Call::SetAccess, 1);
        is_stuck = false;
    }
    SUBCASE("nor taken out again") {
        world.driver.fail_kind(Call::SetAccess, 1);
        world.driver.fail_kind(Call::Unmap, 2);
    }
    REQUIRE(world.allocator->check_isolation(0));  // sees that the fence has passed
    world.allocator->begin_capture(0);             // waits for the thread, tries nothing again
    world.allocator->end_capture(0);
    world.check_audit();
    CHECK(world.driver.faults_fired() > 0);
    CHECK((world.driver.mapped_bytes() > 0) == is_stuck);
    CHECK(world.reserved_bytes() == 5 * kPage);
    CHECK(world.driver.held_bytes(0) == 5 * kPage);
    const std::uint64_t created = world.count(Call::Create);
    CHECK(world.allocate(5 * kPage, stream) != 0);
    CHECK((world.count(Call::Create) > created) == is_stuck);
    world.driver.clear_faults();
    check_no_alarm(world);
    world.check_nothing_left();
}

TEST_CASE("only so many jobs wait") {
    FullQueue queue;
    CHECK(!queue.thread.wait_finished());
    Held held(queue.driver);
    queue.start();
    CHECK(!queue.thread.has_room());
    CHECK(queue.thread.take_finished().empty());
    held.let_go();
    CHECK(queue.take(queue.jobs.size()).size() == queue.jobs.size());
    CHECK(!queue.thread.wait_finished());
    CHECK(queue.thread.has_room());
    CHECK(queue.driver.mapped_bytes() == 0);
    for (const MappingJob& job : queue.jobs) {
        CHECK(job.end == MappingJob::End::Unmapped);
        REQUIRE(queue.driver.release(0, job.chunks[0].handle, kPage).ok());
    }
    REQUIRE(queue.driver.unreserve(queue.pages, 2 * queue.jobs.size() * kPage).ok());
}

TEST_CASE("all leave their old pages before any comes to its new ones") {
    FullQueue queue(4);
    for (const std::size_t i : {0, 1, 3}) {
        queue.jobs[i].fresh_pages = queue.pages + (queue.jobs.size() + i) * kPage;
    }
    Held held(queue.driver);
    queue.start();  // the first may have begun
    held.let_go();
    const std::vector<MappingJob*> ended = queue.take(4);
    REQUIRE(ended.size() == 4);
    const std::vector<MappingJob*> expected = {&queue.jobs[2], &queue.jobs[0], &queue.jobs[1],
                                               &queue.jobs[3]};
    CHECK(ended == expected);
    for (MappingJob* job : ended) {
        CHECK((job->end == MappingJob::End::Mapped) == (job->fresh_pages != 0));
        if (job->fresh_pages != 0) {
            REQUIRE(
                unmap_chunks(queue.driver, job->fresh_pages, LastPlace::Keep, job->chunks).ok());
        }
        REQUIRE(queue.driver.release(0, job->chunks[0].handle, kPage).ok());
    }
    REQUIRE(queue.driver.unreserve(queue.pages, 2 * queue.jobs.size() * kPage).ok());
}

FullQueue* ending_queue = nullptr;
Held* ending_held = nullptr;

// As the driver's own, which is registered before the thread is made.
void end_driver() {
    const std::size_t count = ending_queue->jobs.size();
    const bool is_done = ending_queue->driver.mapped_bytes() == 0 &&
                         ending_queue->take(count).size() == count &&
                         !ending_queue->thread.has_room();
    _exit(is_done ? 7 : 8);
}

TEST_CASE("exit() waits for what is under way, and nothing is afterwards") {
    if (std::getenv("GMA_TEST_ENDS") == nullptr) {
        const ChildResult child = run_self("GMA_TEST_ENDS=1", "-tc='exit() waits*'");
        CHECK_MESSAGE(child.exit_code == 7, child.output);
        return;
    }
    ending_queue = new FullQueue;
    ending_held = new Held(ending_queue->driver);
    REQUIRE(std::atexit(end_driver) == 0);
    ending_queue->start();
    REQUIRE(std::atexit([] { ending_held->let_go(); }) == 0);
    std::exit(9);
}

// Whatever fails, whichever thread meets it: clean books, right contents, nothing left behind.
TEST_CASE("every failing call, with the thread") {
    constexpr Bytes kCard = 2_MiB;
    const auto run = [](Moving& world) {
        std::vector<Address> held;
        for (const Bytes pages : {1, 3, 1, 7}) {
            held.push_back(world.allocate(pages * kPage, stream_at(1)));
        }
        for (int round = 0; round < 2; ++round) {
            for (Address& address : held) {
                if (address != 0) { CHECK(world.free(address).ok()); }
                world.driver.drain_all();
                address = world.allocate((1 + round) * kPage, stream_at(1));
                world.check_audit();
            }
        }
        static_cast<void>(world.allocate(kCard / 4 * 3, stream_at(2)));
        static_cast<void>(world.allocator->trim(0, kCard / 16));
        world.check_audit();
    };
    std::uint64_t calls = 0;
    {
        Moving world("isolation:tensor", kCard);
        run(world);
        calls = world.driver.fallible_calls();
        world.check_nothing_left();
    }
    std::uint64_t fired = 0;
    for (const char* level : {"isolation:tensor", "isolation:strict"}) {
        for (std::uint64_t k = 1; k <= calls; ++k) {
            CAPTURE(k);
            Moving world(level, kCard);
            world.driver.fail_call(k, {}, 1 + k % 2);
            run(world);
            fired += world.driver.faults_fired() > 0 ? 1 : 0;
            world.driver.clear_faults();
            settle(world);
            check_no_alarm(world);
            world.check_nothing_left();
        }
    }
    CHECK(fired > calls);  // of twice as many: how many calls a run makes depends on the thread
}

TEST_CASE("several threads allocate and free while theirs maps") {
    Moving world("isolation:tensor", 64_MiB);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 3; ++number) {
        threads.emplace_back([&, number] {
            std::mt19937 random(number);
            std::vector<Address> mine;
            for (int i = 0; i < (GMA_SANITIZED ? 150 : 600); ++i) {
                if (mine.size() < 8 && random() % 5 < 3) {
                    const Result<Address> address = world.allocator->allocate(
                        0, (1 + random() % 4) * kPage - random() % 500, stream_at(random() % 2));
                    wrong += address ? 0 : 1;
                    if (address) { mine.push_back(*address); }
                } else if (!mine.empty()) {
                    wrong += world.allocator->free(mine.back()).ok() ? 0 : 1;
                    mine.pop_back();
                    world.driver.drain_all();
                } else if (random() % 10 == 0) {
                    wrong += world.allocator->trim(0, 1_MiB) ? 0 : 1;
                }
                if (i % 50 == 0) { wrong += world.allocator->audit().ok() ? 0 : 1; }
            }
            for (const Address address : mine) {
                wrong += world.allocator->free(address).ok() ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) { thread.join(); }
    CHECK(wrong == 0);
    settle(world);
    check_no_alarm(world);
    world.check_nothing_left();
}

}  // namespace gma
