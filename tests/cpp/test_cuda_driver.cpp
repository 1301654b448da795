// The driver on NVIDIA cards: the conformance suite on this machine's card, if it has one, and on
// the stand-in machine of tests/rig, in a process of its own.
#include <dlfcn.h>
#include <doctest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "child_process.h"
#include "driver/cuda_driver.h"
#include "driver_conformance.h"

namespace gma {
namespace {

constexpr const char* kCardTests = "'cuda driver: a card*'";

// A function of the libcuda.so.1 of this process; nullptr if it has none of that name. This test
// knows the few it needs by hand, so that only the driver itself is compiled with cuda.h.
template <class Function>
Function* cuda_function(const char* name) {
    void* library = ::dlopen("libcuda.so.1", RTLD_LAZY);
    return library == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(library, name));
}

bool has_card() { return static_cast<bool>(make_cuda_driver()); }

// The stand-in's functions for tests exist only there.
bool on_stand_in() {
    return ::dlsym(RTLD_DEFAULT, "rig_call_count") != nullptr ||
           cuda_function<void>("rig_call_count") != nullptr;
}

// What a real card needs and the stand-in has not: copies, streams, a context for both.
class Card {
public:
    Card() : driver_(require_value_of(make_cuda_driver())) {
        // The first use of the device makes its context; then this thread may use it too.
        require_value(driver_->card_memory(0));
        if (auto* retain = cuda_function<int(void**, int)>("cuDevicePrimaryCtxRetain")) {
            REQUIRE(retain(&context_, 0) == 0);
        }
        make_current();
    }

    Driver& driver() { return *driver_; }

    void make_current() {
        if (auto* set_current = cuda_function<int(void*)>("cuCtxSetCurrent")) {
            REQUIRE(set_current(context_) == 0);
        }
    }

    Stream stream(std::uintptr_t number) {
        auto* create = cuda_function<int(void**, unsigned)>("cuStreamCreate");
        void* made = reinterpret_cast<void*>(0x10000 * number);
        REQUIRE((create == nullptr || create(&made, 1) == 0));
        return made;
    }

    static void fill(Address address, unsigned char value, Bytes bytes) {
        auto* set = cuda_function<int(Address, unsigned char, std::size_t)>("cuMemsetD8_v2");
        auto* synchronize = cuda_function<int()>("cuCtxSynchronize");
        if (set == nullptr) {
            std::memset(reinterpret_cast<void*>(address), value, bytes);
        } else {
            REQUIRE(set(address, value, bytes) == 0);
            REQUIRE(synchronize() == 0);
        }
    }

    static int read_byte(Address address) {
        auto* copy = cuda_function<int(void*, Address, std::size_t)>("cuMemcpyDtoH_v2");
        unsigned char byte = 0;
        if (copy == nullptr) {
            std::memcpy(&byte, reinterpret_cast<const void*>(address), 1);
        } else {
            REQUIRE(copy(&byte, address, 1) == 0);
        }
        return byte;
    }

    DriverAccess access() {
        return {.driver = *driver_,
                .device = 0,
                .fill = fill,
                .read_byte = read_byte,
                .first_stream = stream(1),
                .second_stream = stream(2),
                .is_strict = on_stand_in()};
    }

private:
    static std::unique_ptr<Driver> require_value_of(Result<std::unique_ptr<Driver>> driver) {
        REQUIRE_MESSAGE(driver, driver.status().message());
        return std::move(*driver);
    }

    std::unique_ptr<Driver> driver_;
    void* context_ = nullptr;
};

const std::string& stand_in_folder() {
    static const std::string folder = [] {
        const auto script =
            std::filesystem::path(__FILE__).parent_path().parent_path() / "rig" / "build.py";
        ChildResult built = run_shell("${PYTHON:-python3} '" + script.string() + "'");
        REQUIRE_MESSAGE(built.exit_code == 0, built.output);
        built.output.erase(built.output.find_last_not_of('\n') + 1);
        return built.output;
    }();
    return folder;
}

// Runs those test cases of this program there, and makes sure that they are as many as expected.
// (No comma in their names: to doctest it separates patterns.)
void check_on_stand_in(const std::string& test_cases, const std::string& environment,
                       long expected_count) {
    const ChildResult child = run_self("LD_LIBRARY_PATH='" + stand_in_folder() + "' " + environment,
                                       "--no-colors --test-case=" + test_cases);
    CHECK_MESSAGE(child.exit_code == 0, child.output);
    const std::string heading = "test cases:";
    const std::size_t at = child.output.find(heading);
    REQUIRE_MESSAGE(at != std::string::npos, child.output);
    const long count = std::strtol(child.output.c_str() + at + heading.size(), nullptr, 10);
    CHECK_MESSAGE(count == expected_count, child.output);
}

}  // namespace

TEST_CASE("cuda driver: a card conforms" * doctest::skip(!has_card())) {
    Card card;
    DriverAccess access = card.access();
    check_driver_conformance(access);
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

namespace {

using FailCall = void(const char*, int, long, long);
using CallCount = long(const char*);
using SetCapturing = void(std::uintptr_t, int);

template <class Function>
Function& rig_function(const char* name) {
    auto* function = cuda_function<Function>(name);
    const bool is_found = function != nullptr;
    REQUIRE_MESSAGE(is_found, name);
    return *function;
}

// The cases below are about the stand-in machine. Each begins with this, which runs the same case
// there and is then true; there it is false, and the case goes on.
bool was_run_on_stand_in(const std::string& environment = "") {
    if (std::getenv("GMA_ON_STAND_IN") != nullptr) { return false; }
    const std::string name = doctest::getContextOptions()->currentTest->m_name;
    check_on_stand_in("'" + name + "'", "GMA_ON_STAND_IN=1 " + environment, 1);
    return true;
}

}  // namespace

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
