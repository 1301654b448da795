// The replay's loop and clock over the real core, and what it refuses to run.
#include <doctest.h>

#include <vector>

#include "replay/pickle_check.h"
#include "replay/replay.h"

namespace gma {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

ReplayStep allocate(std::uint32_t block, Bytes bytes, std::uint64_t stream, std::uint64_t time_ms) {
    ReplayStep step;
    step.kind = StepKind::Allocate;
    step.block = block;
    step.bytes = bytes;
    step.stream = stream;
    step.time_ns = time_ms * kMs;
    return step;
}

ReplayStep give_back(StepKind kind, std::uint32_t block, std::uint64_t time_ms) {
    ReplayStep step;
    step.kind = kind;
    step.block = block;
    step.time_ns = time_ms * kMs;
    return step;
}

ReplayTrace trace_of(std::vector<ReplayStep>& steps, std::size_t block_count) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
        steps[i].event = static_cast<std::int64_t>(i);
    }
    ReplayTrace trace;
    trace.steps = steps;
    trace.block_count = block_count;
    trace.event_count = steps.size();
    return trace;
}

ReplaySettings settings_of(const char* allocator) {
    ReplaySettings settings;
    settings.allocator = allocator;
    return settings;
}

TEST_CASE("every allocator replays the same live bytes") {
    std::vector<ReplayStep> steps = {
        allocate(0, 3_MiB, 0, 0),
        allocate(1, 700, 0, 1),
        give_back(StepKind::Free, 0, 2),
        allocate(2, 2_MiB, 5, 3),
        give_back(StepKind::FreeLater, 1, 4),
        give_back(StepKind::Complete, 1, 30),
    };
    const ReplayTrace trace = trace_of(steps, 3);
    for (const std::string& name : replay_allocators()) {
        CAPTURE(name);
        const auto result = replay(trace, settings_of(name.c_str()));
        REQUIRE(result);
        CHECK(result->peak_live_bytes == 3_MiB + 1024);
        CHECK(result->end_live_bytes == 2_MiB);
        CHECK(result->peak_reserved_bytes >= 3_MiB + 1024);
        CHECK_FALSE(result->oom.has_value());
        CHECK(result->rounds.size() == 1);
    }
}

TEST_CASE("the calls of the second half are those from the middle event on") {
    std::vector<ReplayStep> steps = {
        allocate(0, 30_MiB, 0, 0), allocate(1, 30_MiB, 0, 1), allocate(2, 30_MiB, 0, 2),
        allocate(3, 30_MiB, 0, 3), allocate(4, 30_MiB, 0, 4),
    };
    const auto result = replay(trace_of(steps, 5), settings_of("direct"));
    REQUIRE(result);
    CHECK(result->calls.count(Call::Malloc) == 5);
    CHECK(result->calls_second_half.count(Call::Malloc) == 3);
    CHECK(result->calls_second_half.cost_ns < result->calls.cost_ns);
}

// Freed 1 ms ago with a lag of 20 ms: the GPU still uses it, so the stream must wait for it.
TEST_CASE("memory of another stream is taken by making the stream wait, not the host") {
    std::vector<ReplayStep> steps = {
        allocate(0, 64_MiB, 1, 0),
        give_back(StepKind::Free, 0, 1),
        allocate(1, 64_MiB, 2, 2),
    };
    ReplaySettings settings = settings_of("paged");
    settings.options = {{"stream_slack_mb", "0"}};
    const auto result = replay(trace_of(steps, 2), settings);
    REQUIRE(result);
    CHECK(result->peak_reserved_bytes < 100_MiB);
    CHECK(result->calls.count(Call::Wait) > 0);
    CHECK(result->calls.count(Call::Synchronize) == 0);
}

// Another stream holds the block from its free to its completion.
TEST_CASE("a block freed later is not used again before its completion") {
    for (const bool completes : {false, true}) {
        std::vector<ReplayStep> steps = {allocate(0, 64_MiB, 0, 0),
                                         give_back(StepKind::FreeLater, 0, 1)};
        if (completes) { steps.push_back(give_back(StepKind::Complete, 0, 100)); }
        steps.push_back(allocate(1, 64_MiB, 0, 200));
        for (const char* name : {"native", "split", "paged"}) {
            CAPTURE(name);
            const auto result = replay(trace_of(steps, 2), settings_of(name));
            REQUIRE(result);
            CHECK((result->peak_reserved_bytes < 100_MiB) == completes);
        }
    }
}

TEST_CASE("rounds begin empty and hash their addresses") {
    std::vector<ReplayStep> steps = {allocate(0, 30_MiB, 0, 0), allocate(1, 5_MiB, 0, 1)};
    ReplaySettings settings = settings_of("native");
    settings.repeat = 3;
    const auto result = replay(trace_of(steps, 2), settings);
    REQUIRE(result);
    REQUIRE(result->rounds.size() == 3);
    CHECK(result->rounds[1].address_hash == result->rounds[2].address_hash);
    CHECK(result->rounds[2].end_reserved_bytes == 50_MiB);
    CHECK(result->end_live_bytes == 35_MiB);
}

TEST_CASE("out of memory ends the replay and says where") {
    std::vector<ReplayStep> steps = {allocate(0, 30_MiB, 0, 0), allocate(1, 40_MiB, 0, 1),
                                     allocate(2, 1_MiB, 0, 2)};
    const ReplayTrace trace = trace_of(steps, 3);
    for (const std::string& name : replay_allocators()) {
        CAPTURE(name);
        ReplaySettings settings = settings_of(name.c_str());
        settings.limit_bytes = 64_MiB;
        settings.repeat = 2;
        const auto result = replay(trace, settings);
        REQUIRE(result);
        REQUIRE(result->oom.has_value());
        CHECK(result->oom->event == 1);
        CHECK(result->oom->requested_bytes == 40_MiB);
        CHECK(result->oom->live_bytes == 30_MiB);
        CHECK(result->oom->reserved_bytes <= 64_MiB);
        CHECK(result->rounds.size() == 1);
    }
}

TEST_CASE("a trace that the loop could not rely on is refused") {
    const std::vector<std::vector<ReplayStep>> bad = {
        {allocate(7, 1, 0, 0)},
        {give_back(StepKind::Free, 0, 0)},
        {allocate(0, 1, 0, 0), allocate(0, 1, 0, 1)},
        {allocate(0, 1, 0, 0), give_back(StepKind::Complete, 0, 1)},
        {allocate(0, 1, 0, 5), give_back(StepKind::Free, 0, 4)},
    };
    for (std::vector<ReplayStep> steps : bad) {
        const auto result = replay(trace_of(steps, 2), settings_of("native"));
        REQUIRE_FALSE(result);
        CHECK(result.status().code() == Code::InvalidValue);
    }
}

TEST_CASE("a pool's blocks do not serve the default pool") {
    std::vector<ReplayStep> steps = {allocate(0, 64_MiB, 0, 0), give_back(StepKind::Free, 0, 1),
                                     allocate(1, 64_MiB, 0, 100)};
    steps[0].pool = 1;
    for (const char* name : {"native", "native-expandable", "split", "paged"}) {
        CAPTURE(name);
        const auto result = replay(trace_of(steps, 2), settings_of(name));
        REQUIRE(result);
        CHECK(result->peak_reserved_bytes >= 128_MiB);
    }
}

// A pool that was begun for a while must not keep back the frees of others for good.
TEST_CASE("blocks of other streams come back although a pool was used") {
    std::vector<ReplayStep> steps = {allocate(0, 4_MiB, 0, 0)};
    steps[0].pool = 1;
    for (std::uint32_t block = 1; block <= 100; ++block) {
        const std::uint64_t at = 3 * block;
        steps.push_back(allocate(block, 4_MiB, 4096, at));
        steps.push_back(give_back(StepKind::FreeLater, block, at + 1));
        steps.push_back(give_back(StepKind::Complete, block, at + 2));
    }
    for (const char* name : {"split", "paged"}) {
        CAPTURE(name);
        const auto result = replay(trace_of(steps, 101), settings_of(name));
        REQUIRE(result);
        CHECK(result->peak_reserved_bytes <= 64_MiB);
    }
}

TEST_CASE("a pickle is walked without running it") {
    using namespace std::string_view_literals;
    CHECK(check_pickle("\x80\x04N."sv).empty());
    CHECK(check_pickle("\x80\x04]\x94(K\x01K\x02"
                       "e."sv)
              .empty());
    CHECK(check_pickle("cos\nsystem\n."sv).find("imports") != std::string::npos);
    CHECK(check_pickle("\x80\x04N"sv) == "truncated pickle");
    CHECK(check_pickle(""sv) == "truncated pickle");
}

}  // namespace
}  // namespace gma
