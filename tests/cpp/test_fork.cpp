// What a forked child may do with its parent's allocator: hear that it cannot, and exit.
#include <doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "core/allocator.h"
#include "core/fork_guard.h"
#include "driver/host_driver.h"

namespace gma {
namespace {

struct Parent {
    HostDriver driver;
    std::unique_ptr<Allocator> allocator;

    // A strategy, or a level of isolation.
    explicit Parent(const std::string& kind) {
        Options options;
        const bool is_level = isolation_named(kind) != Isolation::Off;
        (is_level ? options.isolation : options.strategy) = kind;
        if (is_level) { options.mapping_thread = "on"; }
        Result<std::unique_ptr<Allocator>> made = Allocator::create(driver, options);
        REQUIRE(static_cast<bool>(made));
        allocator = std::move(*made);
    }
    Address allocate(Bytes bytes) {
        Result<Address> address = allocator->allocate(0, bytes, nullptr);
        REQUIRE(static_cast<bool>(address));
        return *address;
    }
};

// Exit code of a child that runs `body`. It leaves by exit(), so that the destructors of its
// thread's variables run, which would give caches back; a sanitizer's check for leaks would run
// there too.
int in_child(const std::function<int()>& body) {
    std::cout.flush();
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(20);  // a child that hangs on a lock ends by a signal
        const int code = body();
        GMA_SANITIZED ? _exit(code) : std::exit(code);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

bool is_forked(const Status& status) {
    return status.code() == Code::Forked && status.message().find("spawn") != std::string::npos;
}

}  // namespace

TEST_CASE("a child's calls answer Forked, its frees nothing, and the parent goes on") {
    for (const char* strategy :
         {"paged", "split", "direct", "stream", "packed", "tensor", "strict"}) {
        CAPTURE(strategy);
        Parent parent(strategy);
        Allocator& allocator = *parent.allocator;
        const Address small = parent.allocate(1000);
        const Address large = parent.allocate(5_MiB);
        const std::uint64_t calls = parent.driver.fallible_calls();
        CHECK(allocator.check_process().ok());
        const int code = in_child([&] {
            int wrong = 0;
            const auto expect = [&wrong](bool holds, int bit) { wrong |= holds ? 0 : 1 << bit; };
            expect(is_forked(allocator.allocate(0, 512, nullptr).status()), 0);
            expect(is_forked(allocator.allocate(0, 5_MiB, nullptr).status()), 0);
            expect(allocator.free(small).ok() && allocator.free(large).ok(), 1);
            expect(allocator.free(12345).ok(), 1);
            expect(is_forked(allocator.record_stream(large, nullptr)), 2);
            expect(is_forked(allocator.trim(0).status()), 3);
            expect(is_forked(allocator.set_limit(0, 1_GiB)), 3);
            expect(is_forked(allocator.begin_pool(0, {0, 1}, [](Stream) { return true; })), 4);
            expect(is_forked(allocator.base_allocation(large).status()), 4);
            expect(is_forked(allocator.pin(large)), 4);
            expect(is_forked(allocator.audit()), 5);
            expect(is_forked(allocator.check_process()), 5);
            expect(is_forked(allocator.begin_region(Isolation::Tensor, false)), 4);
            expect(is_forked(allocator.end_region(false)), 4);
            expect(is_forked(allocator.check_isolation(0).status()), 4);
            expect(allocator.ledger(0).empty(), 6);
            expect(allocator.isolation_report(0).violations.empty(), 6);
            expect(allocator.snapshot(0).empty(), 6);
            expect(allocator.statistics(0).allocation[0].current == 0, 6);
            expect(parent.driver.fallible_calls() == calls, 7);
            parent.allocator.reset();
            expect(parent.driver.fallible_calls() == calls, 7);
            return wrong;
        });
        CHECK(code == 0);
        CHECK(allocator.free(small).ok());
        CHECK(allocator.free(large).ok());
        CHECK(allocator.audit().ok());
    }
}

TEST_CASE("a child does not touch the parent's locks, whoever held them") {
    Parent parent("paged");
    static_cast<void>(parent.allocate(1000));
    std::atomic<bool> done{false};
    std::thread busy([&] {
        while (!done) {
            Result<Address> address = parent.allocator->allocate(0, 3_MiB, nullptr);
            if (address) { static_cast<void>(parent.allocator->free(*address)); }
        }
    });
    int worst = 0;
    const auto body = [&] {
        const Status status = parent.allocator->allocate(0, 1000, nullptr).status();
        static_cast<void>(parent.allocator->free(1000));
        parent.allocator.reset();
        return is_forked(status) ? 0 : 1;
    };
    for (int i = 0; i < 20; ++i) { worst = std::max(worst, in_child(body)); }
    done = true;
    busy.join();
    CHECK(worst == 0);
}

TEST_CASE("a child waits for no thread of its parent's, whatever that was doing") {
    Parent parent("tensor");
    int worst = 0;
    for (int i = 0; i < 20; ++i) {
        for (int j = 0; j < 12; ++j) {
            REQUIRE(parent.allocator->free(parent.allocate(1_MiB)).ok());
        }
        worst = std::max(
            worst, in_child([&] {
                const Status status = parent.allocator->allocate(0, 1000, nullptr).status();
                const bool is_silent = parent.allocator->trim(0).status().code() == Code::Forked;
                parent.allocator.reset();
                return is_forked(status) && is_silent ? 0 : 1;
            }));
    }
    CHECK(worst == 0);
    CHECK(parent.allocator->audit().ok());
}

TEST_CASE("a child may make its own, and its child may not use that") {
    Parent parent("paged");
    static_cast<void>(parent.allocate(1000));
    const int code = in_child([] {
        Parent own("paged");
        const Address address = own.allocate(1000);
        if (!own.allocator->free(address).ok() || !own.allocator->audit().ok()) { return 1; }
        return in_child([&own] {
            return is_forked(own.allocator->allocate(0, 1000, nullptr).status()) ? 0 : 2;
        });
    });
    CHECK(code == 0);
}

}  // namespace gma
