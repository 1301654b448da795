// The driver on NVIDIA cards: the conformance suite on this machine's card, if it has one, and on
// the stand-in machine of tests/rig, in a process of its own.
#include <doctest.h>

#include <thread>

#include "content_conformance.h"
#include "stand_in.h"

namespace gma {
namespace {

constexpr const char* kCardTests = "'cuda driver: a card*'";

}  // namespace

TEST_CASE("cuda driver: a card conforms" * doctest::skip(!has_card())) {
    Card card;
    DriverAccess access = card.access();
    check_driver_conformance(access);
    check_content_conformance(access);
}

TEST_CASE("cuda driver: a card's default streams have names" * doctest::skip(!has_card())) {
    Card card;
    Driver& driver = card.driver();
    const Stream legacy = reinterpret_cast<Stream>(1);
    const Stream per_thread = reinterpret_cast<Stream>(2);
    const auto default_id = require_value(driver.stream_id(0, nullptr));
    CHECK(default_id == require_value(driver.stream_id(0, legacy)));
    const auto mine = require_value(driver.stream_id(0, per_thread));
    CHECK(mine == require_value(driver.stream_id(0, per_thread)));
    CHECK(mine != require_value(driver.stream_id(0, legacy)));
    std::uint64_t other = mine;
    std::thread([&] { other = *driver.stream_id(0, per_thread); }).join();
    CHECK(other != mine);
}

TEST_CASE("cuda driver: a card's thread keeps its context" * doctest::skip(!has_card())) {
    Card card;
    Driver& driver = card.driver();
    auto* get_current = cuda_function<int(void**)>("cuCtxGetCurrent");
    auto* set_current = cuda_function<int(void*)>("cuCtxSetCurrent");
    const int last = driver.device_count() - 1;
    void* before = nullptr;
    REQUIRE(get_current(&before) == 0);
    const Handle handle = require_value(driver.create(last, 2_MiB));
    require_ok(driver.release(last, handle, 2_MiB));
    void* after = nullptr;
    REQUIRE(get_current(&after) == 0);
    CHECK(after == before);
    if (!on_stand_in()) {  // where a thread always has a context
        REQUIRE(set_current(nullptr) == 0);
        const Event event = require_value(driver.record(0, nullptr));
        require_ok(driver.synchronize(event));
        driver.recycle(event);
        REQUIRE(get_current(&after) == 0);
        CHECK(after == nullptr);
    }
}

TEST_CASE("cuda driver: the stand-in machine passes for a card") {
    check_on_stand_in(kCardTests, "", 3);
    check_on_stand_in(kCardTests, "RIG_DEVICES=2", 3);
}

TEST_CASE("cuda driver: stand-in: a failure names the call with its size and the reason") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    auto& fail = rig_function<FailCall>("rig_fail_call");
    fail("cuMemCreate", 2, 0, 1);
    const Status full = card.driver().create(0, 64_MiB).status();
    CHECK(full.code() == Code::OutOfMemory);
    CHECK(full.message() ==
          "cuMemCreate(64.00 MiB, device 0) failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
    fail("cuMemAddressReserve", 4, 0, 1);
    const Status gone = card.driver().reserve(0, 2_MiB, 2_MiB).status();
    CHECK(gone.code() == Code::DriverFailed);
    CHECK(gone.message() ==
          "cuMemAddressReserve(2.00 MiB, device 0) failed: CUDA_ERROR_DEINITIALIZED (4)");
    fail("cuEventRecord", 400, 0, 1);
    check_refused(card.driver().record(0, nullptr).status());
    require_ok(card.driver().record(0, nullptr).status());
    CHECK(rig_function<CallCount>("rig_call_count")("cuEventCreate") == 1);  // it was kept
}

TEST_CASE("cuda driver: stand-in: memory that cannot be exported is made plain") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    auto& fail = rig_function<FailCall>("rig_fail_call");
    auto& count = rig_function<CallCount>("rig_call_count");
    fail("cuMemCreate", 800, 0, 2);  // not exportable, no RDMA: not permitted
    const long before = count("cuMemCreate");
    const Handle handle = require_value(card.driver().create(0, 2_MiB));
    CHECK(count("cuMemCreate") == before + 3);
    const Handle second = require_value(card.driver().create(0, 2_MiB));
    CHECK(count("cuMemCreate") == before + 4);  // it remembers
    fail("cuMemCreate", 801, 0, 1);
    CHECK(card.driver().create(0, 2_MiB).status().code() == Code::NotSupported);
    require_ok(card.driver().release(0, handle, 2_MiB));
    require_ok(card.driver().release(0, second, 2_MiB));
}

TEST_CASE("cuda driver: stand-in: a capture elsewhere does not stop memory calls") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    Driver& driver = card.driver();
    const Event event = require_value(driver.record(0, nullptr));
    auto& set_capturing = rig_function<SetCapturing>("rig_set_capturing");
    set_capturing(0x70000, 1);
    CHECK(require_value(driver.capturing(0, reinterpret_cast<Stream>(0x70000))));
    const Address segment = require_value(driver.malloc(0, 2_MiB));
    require_ok(driver.free(0, segment));
    CHECK(require_value(driver.passed(event)));
    require_ok(driver.synchronize(event));
    set_capturing(0x70000, 0);
    driver.recycle(event);
}

TEST_CASE("cuda driver: stand-in: a capturing stream loses its capture over its id") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    Driver& driver = card.driver();
    const Stream stream = card.stream(7);
    const Stream other = card.stream(8);
    const Event event = require_value(driver.record(0, other));
    auto& capture_status = rig_function<int(void*, int*)>("cuStreamIsCapturing");
    const auto status_of_capture = [&] {
        int status = -1;
        REQUIRE(capture_status(stream, &status) == 0);
        return status;
    };
    auto& set_capturing = rig_function<SetCapturing>("rig_set_capturing");
    set_capturing(reinterpret_cast<std::uintptr_t>(stream), 1);
    require_value(driver.stream_id(0, other));
    require_ok(driver.wait(other, event));
    CHECK(status_of_capture() == 1);  // CU_STREAM_CAPTURE_STATUS_ACTIVE
    const Status refused = driver.stream_id(0, stream).status();
    CHECK(refused.driver_code() == 900);
    CHECK(refused.message() ==
          "cuStreamGetId(device 0) failed: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)");
    CHECK(status_of_capture() == 2);  // ..._INVALIDATED
    CHECK(require_value(driver.capturing(0, stream)));
    set_capturing(reinterpret_cast<std::uintptr_t>(stream), 1);
    check_refused(driver.wait(stream, event));
    CHECK(status_of_capture() == 2);
    set_capturing(reinterpret_cast<std::uintptr_t>(stream), 0);
    require_value(driver.stream_id(0, stream));
    driver.recycle(event);
}

TEST_CASE("cuda driver: stand-in: an event passes when its stream has got there") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    Driver& driver = card.driver();
    const Stream slow = card.stream(3);
    const auto number = reinterpret_cast<std::uintptr_t>(slow);
    rig_function<void(std::uintptr_t, int)>("rig_set_slow")(number, 1);
    const Event event = require_value(driver.record(0, slow));
    CHECK_FALSE(require_value(driver.passed(event)));
    rig_function<void(std::uintptr_t)>("rig_finish")(number);
    CHECK(require_value(driver.passed(event)));
    driver.recycle(event);
}

TEST_CASE("cuda driver: stand-in: events are used again") {
    if (was_run_on_stand_in()) { return; }
    Card card;
    auto& count = rig_function<CallCount>("rig_call_count");
    const long before = count("cuEventCreate");
    for (int i = 0; i < 10; ++i) {
        card.driver().recycle(require_value(card.driver().record(0, nullptr)));
    }
    CHECK(count("cuEventCreate") == before + 1);
}

TEST_CASE("cuda driver: stand-in: without mapping segments still work") {
    if (was_run_on_stand_in("RIG_NO_MAPPING=1")) { return; }
    Card card;
    CHECK(require_value(card.driver().properties(0)).page_bytes == 0);
    const Address segment = require_value(card.driver().malloc(0, 2_MiB));
    require_ok(card.driver().free(0, segment));
}

}  // namespace gma
