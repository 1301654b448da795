// fill() and check() of the CUDA driver, both ways, on the stand-in machine: it runs our kernels on
// the CPU and never looks at their image, so this program brings one of its own, and the way with
// kernels is tested where no nvcc is too.
#include <doctest.h>

#include <thread>
#include <vector>

#include "content_conformance.h"
#include "kernels/images.h"
#include "stand_in.h"

namespace gma {

KernelImage pattern_image() {
    static constexpr unsigned char kImage[] = {1};
    return {kImage, sizeof kImage};
}

namespace {

constexpr std::uint32_t kPattern = 0xfffd'fffd;

// Pages of the card, mapped, with a hole behind them, and functions of the stand-in.
struct Pages {
    explicit Pages(Bytes page_count = 4) : driver(card.driver()), bytes(page_count * 2_MiB) {
        base = require_value(driver.reserve(0, bytes + 2_MiB, 2_MiB));
        const Handle handle = require_value(driver.create(0, bytes, Reach::Private));
        require_ok(driver.map(base, bytes, handle));
        require_ok(driver.set_access(0, base, bytes, Reach::Private));
    }

    long calls(const char* name) { return rig_function<CallCount>("rig_call_count")(name); }
    void fail(const char* name, int result, long times) {
        rig_function<FailCall>("rig_fail_call")(name, result, 0, times);
    }
    void hold(Stream stream) {
        rig_function<void(std::uintptr_t, int)>("rig_set_slow")(
            reinterpret_cast<std::uintptr_t>(stream), 1);
    }
    void finish(Stream stream) {
        rig_function<void(std::uintptr_t)>("rig_finish")(reinterpret_cast<std::uintptr_t>(stream));
    }
    std::vector<Finding> found(Check check) {
        std::vector<Finding> findings;
        REQUIRE(require_value(driver.checked(check, true, findings)));
        return findings;
    }
    // So many ranges of 100 bytes, 300 apart.
    std::vector<ByteRange> ranges(Bytes count) const {
        std::vector<ByteRange> all;
        for (Bytes i = 0; i < count; ++i) { all.push_back({base + i * 300, base + i * 300 + 100}); }
        return all;
    }

    Card card;
    Driver& driver;
    Bytes bytes;
    Address base = 0;
};

}  // namespace

TEST_CASE("cuda contents: a stand-in card conforms") {
    if (!on_stand_in()) { return; }
    Card card;
    DriverAccess access = card.access();
    check_content_conformance(access);
    require_ok(card.driver().fill(0, nullptr, {}, kPattern));  // so that it is known
    CHECK(card.driver().content_shortcoming(0).empty() ==
          (std::getenv("GMA_WITHOUT_KERNELS") == nullptr));
}

TEST_CASE("cuda contents: with kernels and without them") {
    const std::string cases = "'cuda contents: a stand-in card*'";
    check_on_stand_in(cases, "", 1);
    // CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NOT_FOUND
    check_on_stand_in(cases, "GMA_WITHOUT_KERNELS=1 RIG_FAIL=cuModuleLoadData=209", 1);
    check_on_stand_in(cases, "GMA_WITHOUT_KERNELS=1 RIG_FAIL=cuModuleGetFunction=500", 1);
}

TEST_CASE("cuda contents: stand-in: many ranges are one launch and one range is a memset") {
    if (was_run_on_stand_in()) { return; }
    Pages pages;
    const std::vector<ByteRange> ranges = pages.ranges(1'000);
    require_ok(pages.driver.fill(0, nullptr, ranges, kPattern));
    CHECK(pages.calls("cuLaunchKernel") == 1);
    CHECK(pages.calls("cuMemsetD32Async") + pages.calls("cuMemsetD8Async") == 0);
    CHECK(pages.found(require_value(pages.driver.check(0, nullptr, ranges, kPattern))).empty());
    CHECK(pages.calls("cuLaunchKernel") == 2);
    CHECK(pages.calls("cuMemcpyDtoHAsync") == 0);
    const ByteRange all{pages.base, pages.base + pages.bytes};
    require_ok(pages.driver.fill(0, nullptr, {all}, kPattern));
    CHECK(pages.calls("cuMemsetD32Async") == 1);
    // Long ones among others are memsets but for the bytes beside whole words.
    require_ok(pages.driver.fill(0, nullptr, {{all.begin + 1, all.end - 1}, ranges[0]}, kPattern));
    CHECK(pages.calls("cuMemsetD32Async") == 2);
    CHECK(pages.calls("cuMemsetD8Async") == 0);
    CHECK(pages.calls("cuLaunchKernel") == 3);
    CHECK(pages.calls("cuModuleLoadData") == 1);
    require_ok(pages.driver.fill(0, nullptr, {}, kPattern));
    CHECK(pages.calls("cuLaunchKernel") == 3);
}

TEST_CASE("cuda contents: stand-in: lists that are on their way are not written again") {
    if (was_run_on_stand_in()) { return; }
    Pages pages;
    const Stream slow = pages.card.stream(3);
    pages.hold(slow);
    const std::vector<ByteRange> ranges = pages.ranges(1'000);
    for (std::size_t first = 0; first < ranges.size(); first += 2) {  // each has a list of its own
        require_ok(pages.driver.fill(0, slow, {ranges[first], ranges[first + 1]}, kPattern));
    }
    const Check early = require_value(pages.driver.check(0, nullptr, ranges, kPattern));
    CHECK(pages.found(early).size() == ranges.size());
    const Check late = require_value(pages.driver.check(0, slow, ranges, kPattern));
    std::vector<Finding> findings;
    CHECK_FALSE(require_value(pages.driver.checked(late, false, findings)));
    CHECK(pages.calls("cuMemHostAlloc") > 1);
    pages.finish(slow);
    CHECK(require_value(pages.driver.checked(late, false, findings)));
    CHECK(findings.empty());
}

TEST_CASE("cuda contents: stand-in: lists are used again when the stream has got there") {
    if (was_run_on_stand_in()) { return; }
    Pages pages;
    const std::vector<ByteRange> ranges = pages.ranges(20);
    for (int i = 0; i < 5'000; ++i) { require_ok(pages.driver.fill(0, nullptr, ranges, kPattern)); }
    CHECK(pages.calls("cuMemHostAlloc") == 1);
    CHECK(pages.calls("cuEventCreate") <= 256);  // as many as a slab has lists
}

TEST_CASE("cuda contents: stand-in: without kernels each range is memsets and a copy of its ends") {
    if (was_run_on_stand_in("RIG_FAIL=cuModuleLoadData=218")) { return; }
    Pages pages;
    CHECK(pages.driver.content_shortcoming(0).empty());  // nobody has tried yet
    require_ok(pages.driver.fill(0, nullptr, {{pages.base + 4, pages.base + 64}}, kPattern));
    CHECK(pages.calls("cuMemsetD32Async") == 1);
    CHECK(pages.calls("cuMemsetD8Async") == 0);
    require_ok(pages.driver.fill(0, nullptr, {{pages.base + 1, pages.base + 66}}, kPattern));
    CHECK(pages.calls("cuMemsetD32Async") == 2);
    CHECK(pages.calls("cuMemsetD8Async") == 5);
    const ByteRange lengthy{pages.base + 70'000, pages.base + 270'000};
    const std::vector<ByteRange> ranges = {lengthy, {pages.base + 1, pages.base + 66}};
    require_ok(pages.driver.fill(0, nullptr, {lengthy}, kPattern));
    CHECK(pages.found(require_value(pages.driver.check(0, nullptr, ranges, kPattern))).empty());
    CHECK(pages.calls("cuMemcpyDtoHAsync") == 3);  // above 64 KiB both ends
    CHECK(pages.calls("cuModuleLoadData") == 1);   // and not tried again
    const auto spoil = [&](Address at) {
        require_ok(pages.driver.fill(0, nullptr, {{at, at + 3}}, 0));
        return pages.found(require_value(pages.driver.check(0, nullptr, ranges, kPattern)));
    };
    CHECK(spoil(pages.base + 170'000).empty());  // in its middle
    const std::vector<Finding> above = spoil(lengthy.end - 3);
    REQUIRE(above.size() == 1);
    CHECK(above[0].first_bad == lengthy.end - 3);
    const std::vector<Finding> both = spoil(lengthy.begin);
    REQUIRE(both.size() == 1);
    CHECK(both[0].first_bad == lengthy.begin);
    CHECK(both[0].bad_bytes == 6);
    CHECK(both[0].range == 0);
    const std::string told = pages.driver.content_shortcoming(0);
    CHECK_MESSAGE(told.find("cuModuleLoadData failed") != std::string::npos, told);
    CHECK_MESSAGE(told.find("above 64.00 KiB are looked at") != std::string::npos, told);
}

TEST_CASE("cuda contents: stand-in: a driver that refuses is told and leaves things in order") {
    if (was_run_on_stand_in()) { return; }
    Pages pages;
    const std::vector<ByteRange> ranges = pages.ranges(10);
    for (const char* name : {"cuLaunchKernel", "cuEventRecord"}) {
        pages.fail(name, 719, 2);
        const Status filled = pages.driver.fill(0, nullptr, ranges, kPattern);
        check_refused(filled, name);
        CHECK(filled.message().find(name) == 0);
        check_refused(pages.driver.check(0, nullptr, ranges, kPattern).status(), name);
        require_ok(pages.driver.fill(0, nullptr, ranges, kPattern));
    }
    const Check check = require_value(pages.driver.check(0, nullptr, ranges, kPattern));
    pages.fail("cuEventSynchronize", 719, 1);
    std::vector<Finding> findings;
    check_refused(pages.driver.checked(check, true, findings).status(), "a wait that fails");
    check_refused(pages.driver.checked(check, true, findings).status(), "what a failure ended");
    CHECK(pages.found(require_value(pages.driver.check(0, nullptr, ranges, kPattern))).empty());
}

TEST_CASE("cuda contents: stand-in: what cannot be checked is filled all the same") {
    if (was_run_on_stand_in()) { return; }
    for (const char* refused : {"cuMemHostAlloc", "cuLaunchKernel"}) {
        CAPTURE(refused);
        Pages pages;
        const ByteRange all{pages.base, pages.base + 2_MiB};
        Card::fill(all.begin, 0x5a, 2_MiB);
        pages.fail(refused, 2, 1);
        const CheckAndFill queued =
            pages.driver.check_and_fill(0, nullptr, all, {all.begin, all.end - 100}, kPattern);
        CHECK(!queued.check);
        CHECK(queued.filled.ok());
        CHECK(pages.found(require_value(pages.driver.check(0, nullptr, {all}, kPattern))).empty());
    }
}

TEST_CASE("cuda contents: stand-in: a capture elsewhere does not matter and one here is refused") {
    if (was_run_on_stand_in()) { return; }
    Pages pages;
    const Stream capturing = pages.card.stream(5);
    const auto number = reinterpret_cast<std::uintptr_t>(capturing);
    rig_function<SetCapturing>("rig_set_capturing")(number, 1);
    const std::vector<ByteRange> ranges = pages.ranges(10);
    require_ok(pages.driver.fill(0, nullptr, ranges, kPattern));
    CHECK(pages.found(require_value(pages.driver.check(0, nullptr, ranges, kPattern))).empty());
    check_refused(pages.driver.fill(0, capturing, ranges, kPattern));
    check_refused(pages.driver.check(0, capturing, ranges, kPattern).status());
    rig_function<SetCapturing>("rig_set_capturing")(number, 0);
    require_ok(pages.driver.fill(0, capturing, ranges, kPattern));
}

TEST_CASE("cuda contents: stand-in: an unmapped address is the end of the context") {
    if (was_run_on_stand_in()) { return; }
    Pages pages;
    const Address end = pages.base + pages.bytes;
    const Stream slow = pages.card.stream(3);
    pages.hold(slow);
    const Check check = require_value(pages.driver.check(0, slow, {{end, end + 4}}, kPattern));
    std::vector<Finding> findings;
    CHECK_FALSE(require_value(pages.driver.checked(check, false, findings)));
    pages.finish(slow);
    CHECK(pages.driver.checked(check, true, findings).status().driver_code() == 700);
    CHECK(pages.driver.record(0, nullptr).status().driver_code() == 700);
}

TEST_CASE("cuda contents: stand-in: private memory is out of reach for a peer") {
    if (was_run_on_stand_in("RIG_DEVICES=2")) { return; }
    Pages pages;
    const ByteRange range{pages.base, pages.base + 4};
    require_ok(pages.driver.fill(0, nullptr, {range}, kPattern));
    require_ok(pages.driver.record(0, nullptr).status());
    require_ok(pages.driver.fill(1, nullptr, {range}, kPattern));
    CHECK(pages.driver.record(1, nullptr).status().driver_code() == 700);
}

TEST_CASE("cuda contents: stand-in: safe from many threads") {
    if (was_run_on_stand_in()) { return; }
    Pages pages;
    std::vector<std::thread> threads;
    std::vector<int> found(4, -1);
    for (std::size_t t = 0; t < found.size(); ++t) {
        threads.emplace_back([&pages, &found, t] {
            const ByteRange range{pages.base + t * 10'001, pages.base + t * 10'001 + 9'999};
            for (int i = 0; i < 200; ++i) {
                std::vector<Finding> findings;
                static_cast<void>(pages.driver.fill(0, nullptr, {range, range}, kPattern));
                const Result<Check> check = pages.driver.check(0, nullptr, {range}, kPattern);
                static_cast<void>(pages.driver.checked(*check, true, findings));
                found[t] = static_cast<int>(findings.size());
            }
        });
    }
    for (std::thread& thread : threads) { thread.join(); }
    CHECK(found == std::vector<int>(4, 0));
}

}  // namespace gma
